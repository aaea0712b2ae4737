// Command environments measures layers: reading them on demand, packing, forking, importing.
//
// Each file is one part, which adds itself to parts; -only names those to run. Every figure has its floor or peer in the
// same run.
package main
