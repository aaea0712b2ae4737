// Package e2b runs the real packages `e2b` of PyPI and npm, a current and an older version of each, over every method that
// they have, on a whole node; docs/e2b.md holds what came of it, and the test compares (-update writes it). testdata/suite.py and
// testdata/suite.mjs are the calls. DSEC_E2B_ONLY narrows the calls to
// those with a word in their names. Packages are installed from their registries once, into DSEC_CACHE.
package e2b
