// Package proxy is the node's check of names: connections that a name opened on TCP 80 and 443 (network.VerdictCheck)
// come here instead of going out. It reads what the client says first, compares the name in it (TLS: SNI; HTTP/1.x: Host
// of every request) with the sandbox's program, and lets the connection through to the address that the client wanted,
// if that address was answered for that name. So the other tenants of a shared address stay closed.
//
// It decrypts nothing, resolves nothing and changes nothing but one header (see HTTP below). After the check, bytes are
// spliced in the kernel.
//
// # TLS
//
// The client hello is read whole, over as many records as it comes in. It must carry one server name that is no address.
// A hello that carries an encrypted one is refused: the name that counts would be the hidden one, and the resolver gives
// nobody a key for it. (Clients that send a random one for show must be told not to; Config.AllowECH accepts the
// outer name instead, for programs that cannot be told and names that do not share their addresses.) If the server asks
// for a second hello, that one is held to the same name.
//
// What is inside the encryption is out of sight: a content network that serves Host B over a connection for SNI A
// (domain fronting) is kept from it only by its own check, which the large ones have.
//
// # HTTP
//
// Every request on a connection is read and its Host checked. Whatever two parsers could read in two ways ends the
// connection: bare line feeds, folded lines, blanks before a colon, repeated or odd lengths, length beside chunks,
// unknown codings, bodies of GET and HEAD, unknown hop-by-hop headers, an absolute target that differs from Host. CONNECT and HTTP/2, with prior
// knowledge or by upgrade, are refused. Another upgrade (websocket) may be the first request of a connection only; once
// the server agrees, bytes go through unread.
// "Expect: 100-continue" is taken out and answered here, since a body that may or may not follow is read in two ways.
//
// # Life of a connection
//
// Accepted, identified (Config.Origin), counted against the sandbox's limit, read (HelloTimeout), checked, dialled
// (DialTimeout), spliced until both sides have ended, one was idle, the policy changed (Recheck) or the server stops. An
// ended side is passed on as such (half-close). Who is refused gets a reason that its protocol has: 403 with a
// sentence, or a TLS alert (access denied).
//
// Connections end with the process that runs the Server (policy/network/netproxy): by a reset, even if it is killed, since an end in
// order is asked for at the end.
package proxy
