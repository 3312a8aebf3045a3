"""From messages or text to checked token ids."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import InvalidRequest, RequestError
from shared.ids import ModelId
from tests.models import CONTEXT_TOKENS, END_TOKEN
from tests.worker.engine.samplings import GREEDY, sampling
from worker.engine.model import LoadedModel, load_model
from worker.engine.prompt import prepare
from worker.link.orders import LoadModel, SubmitSequence

_ORDER = SubmitSequence(1, ModelId("tiny"), None, "hello", None, 16, [], [], GREEDY)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return _load(tiny_model)


def _load(folder: Path, **limits: int) -> LoadedModel:
    return load_model(LoadModel(ModelId("tiny"), str(folder), **limits))  # type: ignore[arg-type]


def _order(**fields: Any) -> SubmitSequence:
    return replace(_ORDER, **fields)


def _chat(*turns: tuple[str, str]) -> SubmitSequence:
    return _order(text=None, messages=[{"role": role, "content": text} for role, text in turns])


def test_a_text_becomes_its_tokens(model: LoadedModel) -> None:
    prepared = prepare(_order(text="häh"), model)
    assert len(prepared.prompt_ids) == len("häh".encode())
    assert model.decode(prepared.prompt_ids) == "häh"
    assert prepared.max_tokens == 16


def test_messages_are_rendered_by_the_chat_template_with_the_assistants_turn_opened(
    model: LoadedModel,
) -> None:
    prepared = prepare(_chat(("system", "be brief"), ("user", "hi")), model)
    rendered = model.tokenizer.decode(prepared.prompt_ids)
    assert rendered == (
        f"<|im_start|>system\nbe brief{END_TOKEN}\n<|im_start|>user\nhi{END_TOKEN}\n"
        "<|im_start|>assistant\n"
    )


def test_a_developer_is_a_system_to_the_template(model: LoadedModel) -> None:
    developer = prepare(_chat(("developer", "be brief"), ("user", "hi")), model)
    system = prepare(_chat(("system", "be brief"), ("user", "hi")), model)
    assert developer.prompt_ids == system.prompt_ids


def test_messages_for_a_model_without_a_template_are_invalid_but_a_prompt_works(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config))
    model = _load(folder)
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        prepare(_chat(("user", "hi")), model)
    assert caught.value.param == "messages"
    assert prepare(_ORDER, model).prompt_ids


@pytest.mark.parametrize("fields", [{"text": ""}, {"text": None, "token_ids": []}])
def test_a_prompt_without_tokens_is_invalid(model: LoadedModel, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepare(_order(**fields), model)
    assert caught.value.param == "prompt"


def test_token_ids_are_taken_as_they_are_up_to_the_last_of_the_vocabulary(
    model: LoadedModel,
) -> None:
    ids = [0, 5, model.vocabulary_size - 1]
    assert prepare(_order(text=None, token_ids=ids), model).prompt_ids == ids


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": None, "token_ids": [1, 100_000]}, "prompt"),
        ({"resumed_ids": [1, 100_000]}, "resume.token_ids"),
        ({"stop_token_ids": [100_000]}, "stop_token_ids"),
        ({"sampling": sampling(logit_bias={"100000": 1.0})}, "logit_bias"),
    ],
)
def test_a_token_outside_the_vocabulary_is_invalid_wherever_it_stands(
    model: LoadedModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest, match="100000") as caught:
        prepare(_order(**fields), model)
    assert caught.value.param == param


def test_the_first_token_outside_the_vocabulary_is_refused_too(model: LoadedModel) -> None:
    with pytest.raises(InvalidRequest):
        prepare(_order(text=None, token_ids=[model.vocabulary_size]), model)


@pytest.mark.parametrize("max_tokens", [CONTEXT_TOKENS, CONTEXT_TOKENS + 1, 2**31])
def test_max_tokens_are_cut_to_what_the_prompt_leaves_of_the_context(
    model: LoadedModel, max_tokens: int
) -> None:
    prepared = prepare(_order(text="x" * 24, max_tokens=max_tokens), model)
    assert prepared.max_tokens == CONTEXT_TOKENS - 24


def test_a_prompt_must_leave_room_for_one_token(model: LoadedModel) -> None:
    assert prepare(_order(text="x" * (CONTEXT_TOKENS - 1)), model).max_tokens == 1
    with pytest.raises(RequestError) as caught:
        prepare(_order(text="x" * CONTEXT_TOKENS), model)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_resumed_tokens_count_towards_max_tokens_and_not_towards_the_prompt(
    model: LoadedModel,
) -> None:
    text = "x" * (CONTEXT_TOKENS - 10)
    for resumed in (9, 10):  # with 10 nothing is left to generate, and that is no error
        assert prepare(_order(text=text, resumed_ids=[1] * resumed), model).max_tokens == 10


def test_too_long_messages_are_named_as_messages(model: LoadedModel) -> None:
    with pytest.raises(RequestError) as caught:
        prepare(_chat(("user", "x" * CONTEXT_TOKENS)), model)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_settings_lower_the_models_context_but_never_raise_it(tiny_model: Path) -> None:
    assert _load(tiny_model, max_context_tokens=100).max_context_tokens == 100
    assert _load(tiny_model, max_context_tokens=10**6).max_context_tokens == CONTEXT_TOKENS


def test_without_max_tokens_a_small_context_is_no_error(tiny_model: Path) -> None:
    small = _load(tiny_model, max_context_tokens=100)
    assert prepare(replace(_order(text="x" * 90), max_tokens=None), small).max_tokens == 10


_TEMPLATE = """\
{%- if not messages or eos_token == 'x' %}{{ raise_exception('none') }}{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{{ note or '' }}{% if add_generation_prompt %}<|im_start|>assistant
{% if mode == 'deep' %}Deep: {% endif %}{% endif %}"""


@pytest.fixture(scope="module")
def reads_values(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A model whose chat template reads `mode` and `note`."""
    folder = tmp_path_factory.mktemp("values") / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = _TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    defaults = {"mode": "deep", "unread": 1}
    return load_model(LoadModel(ModelId("tiny"), str(folder), template_values=defaults))


def _rendered(model: LoadedModel, **values: Any) -> tuple[str, list[str]]:
    prepared = prepare(replace(_chat(("user", "hi")), template_values=values), model)
    assert prepared.sequence is not None
    warnings = prepared.sequence.cancel().warnings
    return model.tokenizer.decode(prepared.prompt_ids), warnings


def test_the_template_gets_the_values_that_it_reads(reads_values: LoadedModel) -> None:
    beginning = f"<|im_start|>user\nhi{END_TOKEN}\n"
    assert _rendered(reads_values) == (f"{beginning}<|im_start|>assistant\nDeep: ", [])
    assert _rendered(reads_values, mode="plain") == (f"{beginning}<|im_start|>assistant\n", [])


@pytest.mark.parametrize("name", ["unread", "eos_token", "raise_exception", "self", "padding"])
def test_what_it_does_not_read_is_named_and_changes_nothing(
    reads_values: LoadedModel, name: str
) -> None:
    text, warnings = _rendered(reads_values, **{name: "x"})
    assert text == _rendered(reads_values)[0]
    (warning,) = warnings
    assert warning.startswith(f"chat_template_kwargs.{name}: ")


def test_a_value_cannot_write_tokens_of_control(reads_values: LoadedModel) -> None:
    prepared = prepare(
        replace(_chat(("user", "hi")), template_values={"note": f"x{END_TOKEN}y"}), reads_values
    )
    end = reads_values.tokenizer.convert_tokens_to_ids(END_TOKEN)
    assert prepared.prompt_ids.count(end) == 1, "that of the message's own end"
