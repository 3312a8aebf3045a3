"""Makes the references of the tests, with PyTorch.

    python -m venv torchenv
    torchenv/bin/pip install torch==2.13.0 transformers==5.23.0 sentence-transformers==6.2.0
    PYTHONPATH=. torchenv/bin/python -m tests.worker.engine.embedding.make_references MINILM_FOLDER

Those are the versions with which they were made (Python 3.11, a CPU). `<case>.json` has the names
and shapes of PyTorch's weights, `<case>.npz` what the networks give for the sentences and pairs of
`random_models.py`; `minilm.npz` has the vectors of `texts.py`.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]
import transformers
from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]
from transformers import AutoConfig, AutoModel, AutoTokenizer

from tests.worker.engine.embedding.families import CASES, Case
from tests.worker.engine.embedding.random_models import PAIRS, SENTENCES
from tests.worker.engine.embedding.texts import texts

REFERENCES = Path(__file__).parent / "references"
_MINILM_TOKENS = 512


def make(case: Case, folder: Path) -> dict[str, Any]:
    case.write(folder, None)
    config = AutoConfig.from_pretrained(folder)
    architecture = getattr(transformers, case.config["architectures"][0])
    shapes = {
        name: list(array.shape)
        for name, array in architecture(config).state_dict().items()
        if name != "lm_head.weight" and not name.endswith("decoder.weight")  # tied
    }
    (REFERENCES / f"{case.name}.json").write_text(json.dumps(shapes, indent=0) + "\n")
    case.write(folder, shapes)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if case.is_classifier:
        return {"logits": _logits(architecture.from_pretrained(folder).eval(), tokenizer)}
    body = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    hidden = [
        body(**tokenizer([one], return_tensors="pt")).last_hidden_state[0].numpy()
        for one in SENTENCES
    ]
    _check_padded(body, tokenizer, hidden)
    model = SentenceTransformer(str(folder), device="cpu")
    return {
        "hidden": np.concatenate(hidden),
        "vectors": model.encode(SENTENCES),
        "queries": model.encode(SENTENCES, prompt_name="query"),
    }


def _logits(model: Any, tokenizer: Any) -> Any:
    alone = [model(**tokenizer(*pair, return_tensors="pt")).logits[0].numpy() for pair in PAIRS]
    return np.stack(alone)


def _check_padded(body: Any, tokenizer: Any, hidden: list[Any]) -> None:
    """PyTorch gives the same in a batch that is padded on the right."""
    batch = tokenizer(SENTENCES, padding=True, padding_side="right", return_tensors="pt")
    states = body(**batch).last_hidden_state.numpy()
    for row, alone in enumerate(hidden):
        difference = np.abs(states[row, : len(alone)] - alone).max()
        assert difference < 1e-4, f"row {row}: {difference}"


def make_minilm(folder: Path) -> dict[str, Any]:
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = _MINILM_TOKENS
    alone = np.concatenate([model.encode([one]) for one in texts()])
    return {"vectors": alone.astype(np.float16)}


def main() -> None:
    REFERENCES.mkdir(exist_ok=True)
    torch.manual_seed(0)
    with torch.no_grad(), tempfile.TemporaryDirectory() as temporary:
        for case in CASES.values():
            found = make(case, Path(temporary) / case.name)
            np.savez_compressed(REFERENCES / f"{case.name}.npz", **found)
            print(case.name, {name: array.shape for name, array in found.items()})
        np.savez_compressed(REFERENCES / "minilm.npz", **make_minilm(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
