"""Models that say what a script has them say, for tests of formats: no figure of speed comes from
them."""
