"""The script that people write instead of `photon batch`: asyncio, the openai client, a semaphore.

    python -m sglang_photon.bench.plain_batch DIR URL OUT CONCURRENCY PROMPT MAX_TOKENS

Everything is in memory until the end, and nothing survives a crash.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path

import openai


async def main(folder: Path, url: str, output: Path, at_once: int, prompt: str, limit: int) -> None:
    """Ask about every picture of a folder."""
    semaphore = asyncio.Semaphore(at_once)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")

    async def ask(picture: Path) -> dict[str, object]:
        async with semaphore:
            data = base64.b64encode(picture.read_bytes()).decode()
            answer = await client.chat.completions.create(
                model="demo",
                messages=[
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "image_url",
                                "image_url": {"url": f"data:image/png;base64,{data}"},
                            },
                            {"type": "text", "text": prompt},
                        ],
                    }
                ],
                max_tokens=limit,
                temperature=0,
            )
            return {"custom_id": picture.name, "response": answer.model_dump()}

    results = await asyncio.gather(*(ask(picture) for picture in sorted(folder.iterdir())))
    output.write_text("".join(json.dumps(result) + "\n" for result in results))


if __name__ == "__main__":
    place, server, target, count, text, tokens = sys.argv[1:]
    asyncio.run(main(Path(place), server, Path(target), int(count), text, int(tokens)))
