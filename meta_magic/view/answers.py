"""What a report answers about its recording, in threads of its own."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

from meta_magic.view.held import FORGOTTEN, find_none

__all__ = ["Answers", "Send"]

T = TypeVar("T")

Send: TypeAlias = Callable[[dict[str, Any]], object]


class Answers(Generic[T]):
    """Answers what a front end asks, one question after the other.

    Args:
        kind: What is asked for, as messages call it.
        find: Returns the recording, or None when it is gone.
        answer: Given the recording and a question, returns the answer.
    """

    def __init__(
        self,
        kind: str,
        find: Callable[[], T | None],
        answer: Callable[[T, Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self._kind = kind
        self._find: Callable[[], T | None] = find
        self._answer = answer
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Let go of the recording."""
        self._find = find_none

    def receive(self, content: Mapping[str, Any], send: Send) -> None:
        """Begin to answer a message, if it asks for that."""
        if content.get("kind") == self._kind:
            self.tell(content, send)

    def tell(self, asked: Mapping[str, Any], send: Send) -> None:
        """Begin to answer; the answer has the ``id`` of its question."""
        threading.Thread(
            target=self._tell,
            args=(asked, send),
            name=f"meta_magic {self._kind}",
            daemon=True,
        ).start()

    def _tell(self, asked: Mapping[str, Any], send: Send) -> None:
        """Send an answer; the body of a thread, which nothing leaves."""
        told: dict[str, Any] = {"error": FORGOTTEN}
        with self._lock:
            found = self._find()
            try:
                if found is not None:
                    told = self._answer(found, asked)
            except BaseException as error:  # noqa: BLE001  the user's own code may run
                told = {"error": f"{type(error).__name__}: {error}"}
        send({"kind": self._kind, "id": asked["id"], **told})
