# ruff: noqa: RUF001
"""200 texts of 1 to 400 tokens and more, most of them short, of several languages.

`make_references.py` imports this in an environment without MLX.
"""

import random

_SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Die Katze sitzt auf der Matte und schläft.",
    "El gato duerme sobre la alfombra roja.",
    "Où se trouve la bibliothèque la plus proche ?",
    "猫はマットの上に座っています。",
    "今天天气很好，我们去公园散步吧。",
    "Кошка сидит на коврике у двери.",
    "القطة تجلس على السجادة.",
    "고양이가 매트 위에 앉아 있습니다.",
    "बिल्ली चटाई पर बैठी है।",
    "I love this! \U0001f600\U0001f44d\U0001f3fd \u2764\ufe0f",
    "def add(a: int, b: int) -> int:\n    return a + b",
    "NATS is a messaging system; JetStream persists its messages.",
    "E = mc² and ∑ xᵢ = 1, but naïve café façades remain.",
    "a",
    "?",
    "  leading and trailing spaces  ",
    "[SEP] and [CLS] are tokens of BERT, [MASK] as well",
    "https://example.com/a/very/long/path?with=query&and=more#fragment",
    "\uff26\uff35\uff2c\uff2c width letters and \ufb01 ligatures",
]
_WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "Zürich São Łódź naïve tokenization unbelievable electroencephalography 1984 3.14159 %"
).split()
COUNT = 200
_MAX_WORDS = 380


def texts() -> list[str]:
    """The same on every machine and version of Python."""
    choice = random.Random(57)
    found = list(_SENTENCES)
    while len(found) < COUNT:
        words = 1 + int(_MAX_WORDS * choice.random() ** 7)
        found.append(" ".join(_WORDS[int(choice.random() * len(_WORDS))] for _ in range(words)))
    return found
