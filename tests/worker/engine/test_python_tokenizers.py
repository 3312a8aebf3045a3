"""Models whose tokenizer is a program, or cannot write every text."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from shared.ids import ModelId
from tests.scripted.families import TEMPLATES
from tests.scripted.folders import make_scripted_model
from tests.worker.engine.running_engine import RunningEngine
from worker.link.facts import ModelLoaded
from worker.link.orders import ToolCallingOptions

_TOOLS = [
    {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
_CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "S\u00e3o Paulo"}}\n</tool_call>'
)
_PROGRAM = Path(__file__).parents[2] / "scripted" / "python_tokenizer.py"
_M = ModelId("m")
_ASKED = [{"role": "user", "content": "a call, please"}]


def _program(folder: Path, demo_folder: Path, *, tells_bytes: bool) -> Path:
    """A scripted model whose tokenizer is a program of its own."""
    make_scripted_model(folder, demo_folder, TEMPLATES["hermes"], {"a call": _CALL})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    shutil.copy(_PROGRAM, folder / "tokenization_program.py")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {
        "tokenizer_class": "ProgramTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_program.ProgramTokenizer", None]},
        "tells_bytes": tells_bytes,
        "added_tokens_decoder": {
            str(token_id): {"content": token.content, "special": token.special, "normalized": False}
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        },
    }
    path.write_text(json.dumps(config))
    return folder


@pytest.fixture
def engine() -> Iterator[RunningEngine]:
    engine = RunningEngine(prefill_chunk_tokens=64)
    engine.start()
    yield engine
    engine.stop()


def test_a_tokenizer_that_is_a_program_calls_tools(
    engine: RunningEngine, demo_folder: Path, tmp_path: Path
) -> None:
    folder = _program(tmp_path / "m", demo_folder, tells_bytes=True)
    loaded = engine.load(folder, _M, trust_remote_code=True)
    assert isinstance(loaded, ModelLoaded), loaded
    assert {"tools", "schema"} <= set(loaded.abilities)
    for calling in (ToolCallingOptions(_TOOLS), ToolCallingOptions(_TOOLS, required=True)):
        answer = engine.generate(None, model=_M, messages=_ASKED, calling=calling, max_tokens=200)
        assert answer.calls == [("get_weather", '{"city": "S\u00e3o Paulo"}')]


def test_one_whose_bytes_are_not_known_is_refused_tools_by_name(
    engine: RunningEngine, demo_folder: Path, tmp_path: Path
) -> None:
    folder = _program(tmp_path / "m", demo_folder, tells_bytes=False)
    loaded = engine.load(folder, _M, trust_remote_code=True)
    assert isinstance(loaded, ModelLoaded), loaded
    assert not {"tools", "schema"} & set(loaded.abilities)
    assert engine.generate(None, model=_M, messages=_ASKED, max_tokens=200).text == _CALL
    refused = engine.refusal(
        engine.submit(
            None, model=_M, messages=_ASKED, calling=ToolCallingOptions(_TOOLS), max_tokens=200
        )
    )
    assert "a ProgramTokenizer: the bytes of its tokens are not known" in refused.message


def test_a_vocabulary_that_cannot_write_every_text_is_refused_tools_by_name(
    engine: RunningEngine, tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny_model, folder)
    described = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = described["model"]["vocab"]
    vocabulary["zz"] = vocabulary.pop("{")
    (folder / "tokenizer.json").write_text(json.dumps(described))
    loaded = engine.load(folder, _M)
    assert isinstance(loaded, ModelLoaded), loaded
    assert not {"tools", "schema"} & set(loaded.abilities)
    assert engine.generate("Hello", model=_M, max_tokens=4).token_ids
    refused = engine.refusal(
        engine.submit(
            None, model=_M, messages=_ASKED, calling=ToolCallingOptions(_TOOLS), max_tokens=4
        )
    )
    assert "no token for the byte 0x7B" in refused.message
