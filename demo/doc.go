// Command demo is the project's main job on real input: rollouts of a scripted agent, each in a sandbox of its
// own, on a node that it starts and stops.
//
//	base       Debian's packages (mmdebstrap), pushed to and pulled from an OCI registry on loopback
//	workspace  the sources of toolz from PyPI, with its test suite
//	toolkit    toolkit/agent.py
//
// In each rollout a seeded mutation breaks the project, the suite is run and must fail, the agent looks for the
// edit, the file is edited through the API, and the suite is run again and must pass. The exit code is 0 only
// if every rollout was as it must be and nothing was left behind.
package main
