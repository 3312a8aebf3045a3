"""Converts errors of loading a model into messages that tell operators what to do."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from shared.errors import ModelError

_SHOWN_NAMES = 3
_SHOWN_CHARACTERS = 300
_OTHER_CONVERSION = "choose another conversion of it, such as one of mlx-community on the hub"
_QUANTISATIONS = (
    "awq", "bitnet", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4", "mxfp8",
)  # fmt: skip
"""Quantisation methods that mlx-lm reads, at least in part (mlx_lm/utils.py, load_model)."""
_MISLEADING = "Only bits="
"""mlx-lm's message names the bits of the file as those that it supports."""
_OUT_OF_MEMORY = re.compile(
    r"\[malloc|\[metal::malloc\]|std::bad_alloc|out of memory|unable to allocate|"
    r"attempting to allocate",
    re.IGNORECASE,
)
_UNREADABLE_WEIGHTS = re.compile(r"\[(load_safetensors|safetensor|read|json\.exception)")
_NO_TOKENIZER = "Couldn't instantiate the backend tokenizer"
_MISSING_FIELDS = re.compile(r"missing \d+ required positional arguments?: (.+)")
_MISSING_WEIGHTS = re.compile(r"Missing (\d+) parameters: ?\n(.*)\.$", re.DOTALL)
_SURPLUS_WEIGHTS = re.compile(r"Received (\d+) parameters not in model: ?\n(.*)\.$", re.DOTALL)
_WRONG_SHAPE = re.compile(
    r"Expected shape (\(.*?\)) but received shape (\(.*?\)) for parameter (.+)"
)
_PACKAGES = {"hf_olmo": "ai2-olmo", "google": "protobuf"}
"""Package names that differ from the module's name."""
_MISSING_PACKAGE = re.compile(r"pip install ['\"`]?([A-Za-z0-9_.\-\[\]]+)")


Stage = Literal["network", "tokenizer", "run"]
_STAGE_ERRORS: Mapping[Stage, str] = {
    "network": "mlx-lm {release} cannot build its network from its config.json and weights",
    "tokenizer": "its tokenizer cannot be read",
    "run": "mlx-lm {release} cannot run it",
}


def loading_error(error: BaseException, folder: Path, stage: Stage) -> ModelError:
    """Convert an error of loading the model in a folder; the message is never a bare Python error.

    Args:
        error: the exception, SystemExit included.
        stage: the stage of loading in which it was raised.
    """
    if isinstance(error, ModelError):
        message = error.message
    else:
        config = _config(folder)
        found = (describe(error, config) for describe in _DESCRIPTIONS)
        message = next((text for text in found if text is not None), "") or (
            f"{_STAGE_ERRORS[stage].format(release=_release())}: {_summary(error)} "
            f"({type(error).__name__})"
        )
    return ModelError(message if message.startswith(str(folder)) else f"{folder}: {message}")


def exit_description(error: BaseException) -> str:
    """Describe code that tried to end the process, and the error before that."""
    cause = error.__cause__ or error.__context__
    why = f", after {type(cause).__name__}: {_summary(cause)}" if cause is not None else ""
    return f"its code ended with {type(error).__name__} ({_summary(error)}){why}"


def _memory(error: BaseException, config: Mapping[str, Any]) -> str | None:
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
        return (
            "there is not enough memory to load it; unload other models, or choose a smaller "
            "model, or one with fewer bits"
        )
    return None


def _files(error: BaseException, config: Mapping[str, Any]) -> str | None:
    match error:
        case FileNotFoundError():
            return f"no such file: {error.filename or _summary(error)}"
        case json.JSONDecodeError():
            return f"one of its files is not valid JSON: {_summary(error)}"
        case UnicodeDecodeError():
            return "one of its text files is not UTF-8; fetch it again"
        case RecursionError():
            return "one of its JSON files is nested too deeply"
    text = str(error)
    if isinstance(error, RuntimeError) and _UNREADABLE_WEIGHTS.match(text):
        return f"its weights cannot be read: {_summary(error)}; fetch them again"
    if text.startswith(_NO_TOKENIZER):
        return (
            "it has no readable tokenizer: no tokenizer.json, and no files of another kind that "
            "can be converted; fetch it again"
        )
    return None


def _package(error: BaseException, config: Mapping[str, Any]) -> str | None:
    """Describe an architecture or a tokenizer that needs a package that is not installed."""
    model_type = config.get("model_type")
    if isinstance(error, SystemExit):  # mlx_lm/models/olmo.py prints what to install, and exits
        return _to_install("hf_olmo") if model_type == "olmo" else exit_description(error)
    cause = error if isinstance(error, ImportError) else error.__cause__
    if isinstance(cause, ImportError):
        module = (cause.name or "").partition(".")[0]
        if module not in ("", "mlx_lm"):
            return _to_install(module)
    missing = _MISSING_PACKAGE.search(str(error))
    return _to_install(missing[1]) if missing is not None else None


def _to_install(module: str) -> str:
    package = _PACKAGES.get(module, module)
    return f"it needs the package {package}; install it with: pip install {package}"


def _architecture(error: BaseException, config: Mapping[str, Any]) -> str | None:
    model_type = config.get("model_type")
    if model_type is None:
        return "config.json has no model_type, so its architecture is unknown"
    text = str(error)
    if isinstance(error, ValueError) and re.fullmatch(r"Model type .* not supported\.", text):
        return (
            f"model_type {model_type!r:.80} is not supported by the installed mlx-lm {_release()}; "
            "a newer release may support it"
        )
    if isinstance(error, TypeError) and (found := _MISSING_FIELDS.search(text)):
        return f"config.json lacks {found[1].replace(chr(39), '')}"
    return None


def _quantisation(error: BaseException, config: Mapping[str, Any]) -> str | None:
    """Describe weights that another program quantised."""
    foreign = config.get("quantization_config")
    if "quantization" in config or not isinstance(foreign, dict):
        own = config.get("quantization")
        if isinstance(own, dict) and isinstance(error, KeyError):
            return f"config.json: quantization lacks {_summary(error)}"
        return None
    method = foreign.get("quant_method")
    if method is None:
        return f"config.json: quantization_config has no quant_method; {_OTHER_CONVERSION}"
    bits = f" in {foreign['bits']} bits" if isinstance(foreign.get("bits"), int) else ""
    quantised = f"its weights are quantised with {method!s:.40}{bits}"
    if method not in _QUANTISATIONS:
        return f"{quantised}, which mlx-lm {_release()} does not read; {_OTHER_CONVERSION}"
    if isinstance(error, UnboundLocalError | KeyError | ValueError | TypeError):
        has_reason = type(error) is ValueError and not str(error).startswith(_MISLEADING)
        reason = f" ({_summary(error)})" if has_reason else ""
        return (
            f"{quantised}, in a way that mlx-lm {_release()} does not read{reason}; "
            f"{_OTHER_CONVERSION}"
        )
    return None


def _weights(error: BaseException, config: Mapping[str, Any]) -> str | None:
    """Describe weights that do not match the network in config.json."""
    text = str(error)
    unfit = "its weights do not fit its config.json"
    if found := _MISSING_WEIGHTS.search(text):
        return f"{unfit}: {found[1]} are missing: {_bounded(found[2])}"
    if found := _SURPLUS_WEIGHTS.search(text):
        return f"{unfit}: {found[1]} have no place in the network: {_bounded(found[2])}"
    if found := _WRONG_SHAPE.search(text):
        return f"{unfit}: {found[3]:.120} has the shape {found[2]} instead of {found[1]}"
    return None


_Describe = Callable[[BaseException, Mapping[str, Any]], str | None]
_DESCRIPTIONS: Sequence[_Describe] = (
    _memory, _package, _architecture, _files, _quantisation, _weights,
)  # fmt: skip


def _config(folder: Path) -> Mapping[str, Any]:
    """Return the content of config.json; a placeholder if it cannot be read, since loading reports
    that error itself."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {"model_type": ""}
    return config if isinstance(config, dict) else {"model_type": ""}


def _bounded(names: str) -> str:
    listed = [name.strip() for name in names.replace("\n", ",").split(",") if name.strip()]
    more = f" and {len(listed) - _SHOWN_NAMES} more" if len(listed) > _SHOWN_NAMES else ""
    return f"{', '.join(name[:120] for name in listed[:_SHOWN_NAMES])}{more}"


def _summary(error: BaseException) -> str:
    """Return the beginning of an error's message, in one line."""
    return " ".join(str(error).split())[:_SHOWN_CHARACTERS]


def _release() -> str:
    return version("mlx-lm")
