"""The screen, keyboard and pointer of a full VM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from . import codec, ports
from .codec import Json, without_defaults
from .errors import InvalidArgument

if TYPE_CHECKING:
    import asyncio

    from .transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Screenshot:
    """A picture of a screen."""

    png: bytes
    width: int
    height: int

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(png=codec.octets(o, "png"), width=codec.integer(o, "width"), height=codec.integer(o, "height"))


class Screen:
    """What is on the screen of a full VM, its keyboard and its pointer; places are pixels from the upper left corner.

    Calls are carried out one after the other. They are not repeated over a broken connection, for typing twice is not
    typing once: ConnectionLost means that it may have been done. Unavailable is raised while the machine has not set up
    its display (try again), Unsupported by sandboxes that have no screen.
    """

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._t = transport
        self._id = sandbox_id

    async def screenshot(self) -> Screenshot:
        """Take a picture, PNG."""
        return Screenshot.from_json(await self._call("TakeScreenshot", safe=True))

    async def size(self) -> tuple[int, int]:
        """Width and height, in pixels; they change as the system inside changes its mode."""
        o = await self._call("GetScreen", safe=True)
        return codec.integer(o, "width"), codec.integer(o, "height")

    async def text(self) -> str:
        """What a screen in text mode says, line by line; "" in graphics."""
        return codec.text(await self._call("GetScreen", safe=True), "text")

    async def type(self, text: str, *, interval: float | None = None) -> None:
        """Type a text on a keyboard of layout en-us; a newline is Enter.

        Each key takes ``interval`` seconds at least, and as long as the machine needs to take it, so that none is lost.
        Raises InvalidArgument, before anything is typed, for a character that the layout lacks.
        """
        await self._call("TypeText", text=text, intervalSeconds=interval)

    async def press(self, *keys: str, hold: float | None = None) -> None:
        """Press one combination: ``press("ctrl", "alt", "delete")``. ``hold``: seconds that the keys stay down."""
        if not keys:
            raise InvalidArgument("press: name a key, like enter")
        await self._call("PressKeys", keys=list(keys), holdSeconds=hold)

    async def move(self, x: int, y: int) -> None:
        """Move the pointer."""
        await self._call("MovePointer", x=x, y=y)

    async def click(self, x: int | None = None, y: int | None = None, *, button: str = "left", count: int = 1) -> None:
        """Click left, middle or right, there or where the pointer is; ``count=2`` is a double click."""
        if count < 1:
            raise InvalidArgument(f"count {count}: want 1 or more")
        await self._call("ClickPointer", button=button, count=count, **_place(x, y))

    async def scroll(self, steps: int, x: int | None = None, y: int | None = None) -> None:
        """Turn the wheel downwards, upwards with a negative number, there or where the pointer is."""
        await self._call("ScrollPointer", steps=steps, **_place(x, y))

    async def vnc(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection in the RFB protocol, as VNC viewers speak it. Closing the writer is the caller's."""
        return await ports.tunnel(self._t, f"/v1/sandboxes/{self._id}/screen/vnc", "screen")

    async def _call(self, method: str, *, safe: bool = False, **fields: object) -> Json:
        body = {"sandboxId": self._id, **without_defaults(**fields)}
        return await self._t.unary(f"ScreenService/{method}", body, safe=safe)


def _place(x: int | None, y: int | None) -> dict[str, Any]:
    if x is None and y is None:
        return {}
    if x is None or y is None:
        raise InvalidArgument("give x and y, or neither")
    return {"x": x, "y": y}
