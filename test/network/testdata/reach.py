#!/usr/bin/python3
"""Tells what a connection comes to: the body of a page, "open", or what went wrong in one word.

    reach URL                  a page
    reach tcp ADDRESS PORT     a connection
    reach udp ADDRESS PORT     a datagram that is to be answered
    reach sni ADDRESS NAME     a page by TLS at an address, under a name
    reach host ADDRESS NAME    the status of a page by HTTP at an address, under a name
    reach talk ADDRESS PORT    bytes back and forth until it ends, and then why
    reach stream URL           a page without an end, until it ends, and then why
    reach ping ADDRESS         an echo, that comes back (pong) or is refused
    reach self 4|6             the sandbox's own address
    reach forge ADDRESS PORT   datagrams from an address that is another's, by a raw and by a packet socket; then a true one
"""
import errno, os, socket, struct, sys, time

WAIT = 20


def tls():
    import ssl  # costs more than a connection: only who needs it pays
    return ssl.create_default_context(cafile="/etc/ca.pem")


def opened(url, timeout):
    import urllib.request as u
    return u.build_opener(u.ProxyHandler({}), u.HTTPSHandler(context=tls())).open(url, timeout=timeout)


def word(e):
    while isinstance(getattr(e, "reason", None), Exception):
        e = e.reason
    if isinstance(e, socket.gaierror):
        return {socket.EAI_NONAME: "name", socket.EAI_AGAIN: "again", socket.EAI_NODATA: "nodata"}.get(e.args[0], repr(e))
    if isinstance(e, TimeoutError):
        return "timeout"
    if type(e).__name__ in ("SSLEOFError", "RemoteDisconnected"):
        return "reset"
    if type(e).__module__ == "ssl":  # its errno is not the system's
        return "tls " + str(e.reason)
    if isinstance(e, OSError) and e.errno:
        known = {errno.EPERM: "denied", errno.EACCES: "denied", errno.ECONNREFUSED: "refused", errno.ECONNRESET: "reset",
                 errno.EPIPE: "reset", errno.ENETUNREACH: "unreachable", errno.EHOSTUNREACH: "unreachable"}
        return known.get(e.errno, errno.errorcode[e.errno])
    return repr(e)


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def page(url):
    with opened(url, WAIT) as r:
        return f"{r.status} {r.read().decode().strip()}"


def tcp(address, port):
    socket.create_connection((address, int(port)), WAIT).close()
    return "open"


def udp(address, port):
    s = socket.socket(family(address), socket.SOCK_DGRAM)
    s.settimeout(3)
    s.connect((address, int(port)))
    s.send(b"true")
    return s.recv(100).decode()


def ping(address):
    six = ":" in address
    request, reply, refusal = (128, 129, (1, 1)) if six else (8, 0, (3, 13))
    s = socket.socket(family(address), socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP)
    s.settimeout(WAIT)
    body = struct.pack("!HH", os.getpid() & 0xFFFF, 1) + b"echo"
    packet = struct.pack("!BBH", request, 0, 0) + body
    if not six:  # the kernel sums IPv6's
        packet = packet[:2] + struct.pack("!H", checksum(packet)) + packet[4:]
    s.sendto(packet, (address, 0))
    while True:
        got = s.recv(2000)
        if not six:
            got = got[(got[0] & 15) * 4 :]
        if got[0] == reply and got[4:] == body:
            return "pong"
        if got[0] == refusal[0]:
            return "prohibited" if got[1] == refusal[1] else "unreachable"


def sni(address, name):
    raw = socket.create_connection((address, 443), WAIT)
    with tls().wrap_socket(raw, server_hostname=name) as s:
        s.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
        return s.makefile("rb").read().decode().split("\r\n\r\n", 1)[1].strip()


def host(address, name):
    s = socket.create_connection((address, 80), WAIT)
    s.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
    return s.makefile("rb").readline().decode().strip()


def talk(address, port):
    s = socket.create_connection((address, int(port)), WAIT)
    s.settimeout(60)
    while True:
        s.sendall(b"x")
        if not s.recv(1):
            return "closed"
        time.sleep(0.02)


def stream(url):
    with opened(url, 60) as r:
        n = 0
        while r.read(1):
            n += 1
            open("/tmp/count", "w").write(str(n))
    return "closed"


def own(v):
    s = socket.socket(socket.AF_INET6 if v == "6" else socket.AF_INET, socket.SOCK_DGRAM)
    for line in open("/proc/net/if_inet6" if v == "6" else "/proc/net/fib_trie"):
        if v == "6":
            f = line.split()
            if f[3] == "00":
                return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(f[0]))
        elif "|--" in line:
            last = line.split()[-1]
        elif "host LOCAL" in line and not last.startswith("127."):
            return last


def checksum(b):
    n = sum(struct.unpack(f"!{len(b) // 2}H", b))
    n = (n >> 16) + (n & 0xFFFF)
    return ~(n + (n >> 16)) & 0xFFFF


def forge(address, port):
    """Prints how many packets the kernel inside took, before the true one."""
    taken = 0
    body = b"forged"
    for source in ("203.0.113.251", "100.127.127.253"):
        ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(body), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(address))
        ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
        packet = ip + struct.pack("!HHHH", 4000, int(port), 8 + len(body), 0) + body
        try:
            s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
            s.sendto(packet, (address, 0))
            taken += 1
        except OSError:
            pass
        for mac in (bytes.fromhex("02d5ecfffe99"), None):
            try:
                name = [n for n in os.listdir("/sys/class/net") if n != "lo"][0]
                here = bytes.fromhex(open(f"/sys/class/net/{name}/address").read().strip().replace(":", ""))
                s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
                s.bind((name, 0))
                for to in (b"\xff" * 6, here):
                    s.send(to + (mac or here) + b"\x08\x00" + packet)
                    taken += 1
            except OSError:
                pass
    print(udp(address, port))
    return f"taken {taken}" if os.environ.get("TAKEN") else "done"


try:
    verb, rest = sys.argv[1], sys.argv[2:]
    f = {"tcp": tcp, "udp": udp, "sni": sni, "host": host, "talk": talk, "stream": stream, "ping": ping, "self": own, "forge": forge}.get(verb)
    print(f(*rest) if f else page(verb))
except Exception as e:
    print(word(e))
