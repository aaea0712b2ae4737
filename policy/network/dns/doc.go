// Package dns is the node's resolver for sandboxes: the only one that they can reach. It resolves the names that a
// sandbox's program allows, makes exactly the answered addresses reachable before it answers (Opener), and says that
// all other names do not exist.
//
// # A question's way
//
// Who asks is told from the source address (Config.Identify; the data plane has checked that it is not forged). Then:
// the sandbox's rate; names that are local (localhost, a job's own names, reverse names); the program; for names of
// which the asker chose a part (wildcards), bounds on length, randomness and new bytes per second; the cache; the
// upstream resolvers, once for all who ask the same; the addresses, each checked against the program under the name
// that was asked for; the Opener; the answer.
//
// # What is answered
//
// A, AAAA and HTTPS of allowed names are resolved. Every other type has no data for an allowed name, and nothing is asked
// upstream: TXT, MX, SRV and the like are ways to carry data, and no client that fetches packages needs them. HTTPS
// records lose keys for encrypted client hellos, HTTP/3, address hints, and foreign targets. Denied names do not exist
// (NXDOMAIN), at once. Reasons stand in the extended error of answers to clients that understand it.
//
// The asked name decides about its aliases: content networks change them at will. A link that a rule denies by name
// ("!tracker.example") is refused all the same.
//
// Answers that point to the node, private or metadata ranges are dropped unless a rule names the range (DNS rebinding);
// if nothing remains, the answer has no data.
//
// # Against forged answers
//
// Every question upstream has its own socket with a random port, a random id and a random case, and the answer must
// match all of them; others are ignored until the time is up, and then TCP is tried. From an answer, only the chain that
// starts at the question is taken; further records are ignored.
//
// # Bounds
//
// Time to live: at least MinTTL (an upstream's 0 would mean that addresses close before anyone connects), at most MaxTTL.
// Addresses: at most MaxAddresses of an answer. Questions: by second and at once, for each sandbox and in all. Waiting:
// Timeout, then SERVFAIL. The cache: entries. Events: by second, for each sandbox; what is left out is counted.
//
// One thing is shared between sandboxes: the cache, by which one can tell from the time of an answer that another has
// asked for the same name.
package dns
