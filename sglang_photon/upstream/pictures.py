"""Pictures in SGLang's tokenizer process: fetched by SGLang, looked at and mended by us.

SGLang loads one picture per call in a thread, and names its number in the error of a `ValueError`,
which becomes a status 400. Here whatever is wrong with a picture becomes one, from the header where
that tells. Placeholders without a picture, and pictures without a place, are refused before the
scheduler hears of them.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any
from urllib.parse import unquote, urlparse

from PIL import Image
from sglang.srt.managers.schedule_batch import Modality
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.multimodal.processors.base_processor import BaseMultimodalProcessor
from sglang.srt.utils import CLIENT_MEDIA_EXCEPTIONS, ImageData
from sglang.srt.utils.common import get_image_bytes, is_jpeg_with_cuda

from sglang_photon.config import PhotonConfig
from sglang_photon.ingest import pictures
from sglang_photon.ingest.pictures import PictureError
from sglang_photon.upstream import admission

LOAD_SINGLE_ITEM = BaseMultimodalProcessor.__dict__["_load_single_item"].__func__
CREATE_TOKENIZED_OBJECT = TokenizerManager._create_tokenized_object
SHOWN = 100
"""Characters of an address that an error message shows: never a picture."""


class Encoded(bytes):
    """A picture's file; what is printed of it is its length."""

    def __str__(self) -> str:
        return f"<{len(self)} bytes>"

    __repr__ = __str__


def install(config: PhotonConfig) -> None:
    """Change how SGLang loads pictures in this process."""
    # Pillow warns where we refuse.
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    load = partial(_load_single_item, mend=config.pictures == "auto")

    def load_single_item(
        cls: Any,
        data: Any,
        modality: Modality,
        frame_count_limit: int | None = None,
        audio_sample_rate: int | None = None,
        discard_alpha_channel: bool = True,
    ) -> Any:
        rest = (frame_count_limit, audio_sample_rate, discard_alpha_channel)
        return load(cls, data, modality, rest)

    BaseMultimodalProcessor._load_single_item = classmethod(load_single_item)
    TokenizerManager._create_tokenized_object = _create_tokenized_object


def _load_single_item(
    cls: Any, data: Any, modality: Modality, rest: tuple[Any, ...], *, mend: bool
) -> Any:
    if modality is Modality.IMAGE and not cls._is_preprocessed_input(data):
        data = _picture(cls, data, flat=rest[-1] and not cls.smart_rgb_conversion, mend=mend)
    return LOAD_SINGLE_ITEM(cls, data, modality, *rest)


def _picture(cls: Any, data: Any, *, flat: bool, mend: bool) -> Any:
    """What SGLang is to load in place of what the client sent."""
    source = data.url if isinstance(data, ImageData) else data
    try:
        encoded = None if isinstance(source, Image.Image) else _fetched(source)
        image = source if encoded is None else pictures.opened(encoded)
        pictures.check(image.size, max_ratio=_max_ratio(cls))
        on_device = encoded is not None and is_jpeg_with_cuda(encoded, cls.gpu_image_decode)
        if on_device and (not mend or pictures.upright(image)):
            return Encoded(encoded)
        image = pictures.decoded(image)
        return pictures.mended(image, flat=flat) if mend else image
    except PictureError as error:
        raise PictureError(f"Error while loading data {_shown(source)}: {error}") from error


def _fetched(source: Any) -> bytes:
    if isinstance(source, bytes):
        return source
    if not isinstance(source, str):
        raise PictureError(f"an image is an address or base64 text, not {type(source).__name__}")
    if source.startswith("file://"):
        source = unquote(urlparse(source).path)
    try:
        return get_image_bytes(source)
    except (*CLIENT_MEDIA_EXCEPTIONS, OSError) as error:
        raise PictureError(str(error)) from error


def _max_ratio(cls: Any) -> float | None:
    """The aspect ratio that a model's processor refuses; SGLang keeps it beside the class."""
    for base in cls.__mro__:
        found = getattr(sys.modules.get(base.__module__), "MAX_RATIO", None)
        if found is not None:
            return float(found)
    return None


def _shown(source: Any) -> str:
    text = source[:SHOWN] if isinstance(source, str) else f"<{type(source).__name__}>"
    return f"{text}..." if isinstance(source, str) and len(source) > SHOWN else text


def _create_tokenized_object(
    manager: Any,
    obj: Any,
    input_text: str,
    input_ids: list[int] | None,
    input_embeds: Any = None,
    mm_inputs: Any = None,
    token_type_ids: Any = None,
) -> Any:
    """Refuse prompts whose places for pictures and whose pictures do not match."""
    if manager.mm_processor is not None and input_ids is not None:
        _check_places(manager.mm_processor, obj, input_ids, mm_inputs)
    admission.tensors_made(obj, mm_inputs)
    return CREATE_TOKENIZED_OBJECT(
        manager, obj, input_text, input_ids, input_embeds, mm_inputs, token_type_ids
    )


def _check_places(processor: Any, obj: Any, input_ids: list[int], mm_inputs: Any) -> None:
    given = obj.image_data or []
    given = given if isinstance(given, list) else [given]
    if mm_inputs is None:
        token = getattr(getattr(processor, "mm_tokens", None), "image_token_id", None)
        if not obj.contains_mm_input() and token is not None and token in input_ids:
            raise PictureError("The prompt has a place for an image, but there is no image")
        return
    items = [item for item in mm_inputs.mm_items if item.is_image()]
    if any(processor._is_preprocessed_input(one) for one in given):
        return
    # Where a model marks the start of a picture, each has an item of its own.
    places = len(items) if mm_inputs.im_start_id is not None else len(given) * bool(items)
    if places < len(given):
        raise PictureError(
            f"The prompt has places for {places} of {len(given)} images: give one for each"
        )
    ends = [end for item in mm_inputs.mm_items for _, end in item.offsets or ()]
    if max(ends, default=-1) >= len(input_ids):
        raise PictureError(
            f"The prompt was cut to {len(input_ids)} tokens, in the middle of an image: "
            "send fewer or smaller images"
        )
