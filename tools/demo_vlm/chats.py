"""Random conversations about random scenes, as people might hold them.

A chat is a list of turns behind a system prompt; training takes the loss on every answer. Scenes
come from the trained combinations only, so nothing here ever shows a held-out one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sglang_photon.reference.models.pictures import (
    MAX_SHAPES,
    PAIR_TASKS,
    TASKS,
    Scene,
    ask,
    ask_pair,
    askable,
    describe,
    random_scene,
)

DEFAULT_SYSTEM = "You are a helpful assistant."
_SYSTEMS = (
    "You are a concise assistant.",
    "Answer briefly.",
    "You look at pictures of coloured shapes.",
    "You are a vision model. Answer in as few words as possible.",
    "Be helpful and precise.",
    "You answer questions about images.",
    "Reply with the answer only.",
)
_WORDS = re.findall(
    r"\w+",
    "the a of to and in is it you that he was for on are with as his they be at one have this from "
    "or had by hot but some what there we can out other were all your when up use word how said an "
    "each she which do their time if will way about many then them would write like so these her "
    "long make thing see him two has look more day could go come did my sound no most number who "
    "over know water than call first people may down side been now find any new work part take get "
    "place made live where after back little only round man year came show every good me give our "
    "under name very through just form much great think say help low line before turn cause same "
    "mean differ move right boy old too does tell sentence set three want air well also play small "
    "end put home read hand port large spell add even land here must big high such follow act why "
    "weather code python river story music city school model server token batch",
)

_ABILITIES = (
    "I describe pictures of coloured shapes, answer questions about them "
    "and give points and boxes as JSON."
)
_SMALL_TALK = {
    ("Hello", "Hello!", "Hi", "Hi!", "Hey", "Hi there!", "Hello there", "Good morning", "Hey!"): (
        "Hello! Show me a picture of coloured shapes."
    ),
    (
        "What can you do?",
        "Who are you?",
        "What are you?",
        "Help",
        "How can you help me?",
        "What do you do?",
        "What can I ask you?",
        "Hello, what can you do?",
        "Hi, who are you?",
    ): _ABILITIES,
    ("Thank you", "Thanks", "Thank you!", "Thanks!", "Thanks a lot", "Great, thanks"): (
        "You are welcome."
    ),
    ("Bye", "Goodbye", "Bye!", "See you", "Good night"): "Goodbye!",
}
_NO_PICTURE = "Please show me a picture first."
_OUT_OF_SCOPE = "I only know pictures of coloured shapes."


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One user message, its pictures before or after the text, and the answer wanted."""

    scenes: tuple[Scene, ...]
    text: str
    pictures_first: bool
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Chat:
    """A system prompt and the turns behind it."""

    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """What is asked how often.

    ``most`` bounds the questions about the same pictures; ``tasks`` holds the weights of
    single-picture tasks that are not 1; ``pairs`` is the share of chats about two pictures,
    ``pair_questions`` the share of questions, rather than descriptions, among those.
    """

    most: int
    tasks: Mapping[str, float] = field(default_factory=dict)
    pairs: float = 0.23
    pair_questions: float = 0.5


def _pick_text(rng: np.random.Generator, options: tuple[str, ...] | list[str]) -> str:
    return options[int(rng.integers(len(options)))]


def _salad(rng: np.random.Generator) -> str:
    words = [_pick_text(rng, _WORDS) for _ in range(int(rng.integers(1, 12)))]
    return " ".join(words).capitalize() + _pick_text(rng, (".", "?", "", "!"))


def _system(rng: np.random.Generator) -> str:
    luck = rng.random()
    if luck < 0.6:
        return DEFAULT_SYSTEM
    return _pick_text(rng, _SYSTEMS) if luck < 0.8 else _salad(rng)


def _loosen(rng: np.random.Generator, text: str, task: str) -> str:
    """How people vary a question: case, punctuation, politeness, a hint at the format."""
    luck = rng.random()
    if luck < 0.1:
        text = "Please " + text[0].lower() + text[1:]
    elif luck < 0.15:
        text = f"{_pick_text(rng, ('Now', 'Hi!', 'OK.', 'So'))} {text[0].lower()}{text[1:]}"
    if rng.random() < 0.15:
        text = text.lower()
    if rng.random() < 0.15:
        text = text.rstrip(".?")
    if task in ("point", "box") and rng.random() < 0.2:
        text += _pick_text(rng, (" Answer in JSON.", " Reply with JSON only.", " Use JSON."))
    return text


def random_scenes(rng: np.random.Generator, count: int) -> list[Scene]:
    """``count`` scenes of the trained combinations, mostly of one to three shapes."""
    sizes = rng.choice(MAX_SHAPES + 1, size=count, p=(0.02, 0.26, 0.32, 0.4))
    return [random_scene(rng, count=int(size)) for size in sizes]


def _choose(rng: np.random.Generator, scenes: Sequence[Scene]) -> Scene:
    return scenes[int(rng.integers(len(scenes)))]


def _question(rng: np.random.Generator, scene: Scene, mix: Mix) -> tuple[str, str]:
    """Text and answer of a random single-picture question."""
    tasks = [task for task in TASKS if askable(scene, task)]
    shares = np.array([mix.tasks.get(task, 1.0) for task in tasks])
    question = ask(rng, scene, tasks[int(rng.choice(len(tasks), p=shares / shares.sum()))])
    return _loosen(rng, question.text, question.task), question.answer


def _picture_turns(rng: np.random.Generator, scenes: Sequence[Scene], mix: Mix) -> list[Turn]:
    """One picture and up to ``mix.most`` questions about it, sometimes then another picture."""
    turns: list[Turn] = []
    scene = _choose(rng, scenes)
    shown = False
    for _ in range(int(rng.integers(1, mix.most + 1))):
        if shown and rng.random() < 0.06:
            scene, shown = _choose(rng, scenes), False
        text, answer = _question(rng, scene, mix)
        if not shown and rng.random() < 0.02:
            text, answer = "", describe(scene)
        turns.append(
            Turn(
                scenes=() if shown else (scene,),
                text=text,
                pictures_first=bool(rng.random() < 0.7),
                answer=answer,
            )
        )
        shown = True
    return turns


def _pair_turns(rng: np.random.Generator, scenes: Sequence[Scene], mix: Mix) -> list[Turn]:
    """Two pictures in one message and up to ``mix.most`` questions about them."""
    pair = (_choose(rng, scenes), _choose(rng, scenes))
    turns: list[Turn] = []
    for index in range(int(rng.integers(1, mix.most + 1))):
        task = PAIR_TASKS[int(rng.random() < mix.pair_questions)]
        question = ask_pair(rng, pair, task)
        turns.append(
            Turn(
                scenes=pair if index == 0 else (),
                text=_loosen(rng, question.text, question.task),
                pictures_first=bool(rng.random() < 0.7),
                answer=question.answer,
            )
        )
    return turns


def _text_turns(rng: np.random.Generator, scenes: Sequence[Scene], mix: Mix) -> list[Turn]:
    """Small talk, a question without a picture, or something out of scope."""
    luck = rng.random()
    if luck < 0.6:
        groups = list(_SMALL_TALK.items())
        wordings, answer = groups[int(rng.integers(len(groups)))]
        text = _pick_text(rng, wordings)
        text = text.lower() if rng.random() < 0.4 else text
    elif luck < 0.8:
        text, answer = _question(rng, _choose(rng, scenes), mix)[0], _NO_PICTURE
    else:
        text, answer = _salad(rng), _OUT_OF_SCOPE
    return [Turn(scenes=(), text=text, pictures_first=True, answer=answer)]


def random_chat(rng: np.random.Generator, scenes: Sequence[Scene], mix: Mix) -> Chat:
    """One conversation: mostly about one picture, some about two, some without any.

    The pictures are of ``scenes``.
    """
    luck = rng.random()
    if luck < 0.05:
        turns = _text_turns(rng, scenes, mix)
        if mix.most > 1 and rng.random() < 0.3:
            turns += _picture_turns(rng, scenes, mix)
    elif luck < 0.05 + mix.pairs:
        turns = _pair_turns(rng, scenes, mix)
    else:
        turns = _picture_turns(rng, scenes, mix)
        if mix.most > 1 and rng.random() < 0.03:
            turns += [t for t in _text_turns(rng, scenes, mix) if t.answer != _NO_PICTURE]
    return Chat(system=_system(rng), turns=tuple(turns))


def corpus(rng: np.random.Generator, chats: int) -> list[str]:
    """Texts for the tokenizer: what ``chats`` conversations say."""
    texts: list[str] = ["system\n", "user\n", "assistant\n"] * chats
    scenes = random_scenes(rng, chats)
    for _ in range(chats):
        chat = random_chat(rng, scenes, Mix(most=3))
        texts.append(chat.system)
        for turn in chat.turns:
            texts += [turn.text, turn.answer]
    return texts
