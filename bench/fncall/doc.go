// Command fncall measures function calls through the API beside floors (fork+exec of the same programs from the same root
// file system, under the same resource limits) and peers (runc, bubblewrap) in the same run, and judges a corpus of
// submissions whose verdicts are known.
package main
