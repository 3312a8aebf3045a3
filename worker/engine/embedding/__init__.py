"""Networks that embed texts, and classifiers that score pairs of texts."""
