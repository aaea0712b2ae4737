// Package strictjson is the JSON of requests to servers: a field or a word of an enumeration that this version does
// not know is an error that names it, because the caller would otherwise get something else than it asked for (a
// filter that filters nothing, a limit that is not set). Binary messages stay tolerant, as protobuf's rules of
// versions want it. An SDK that speaks JSON and is newer than the server is told what the server lacks.
package strictjson
