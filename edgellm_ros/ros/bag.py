"""Recordings of rosbag2: what topics they hold, and their messages as they went over the wire.

Needs no ROS. The package ``rosbags`` reads the files (folders with metadata.yaml, or single mcap and sqlite3 files).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import EdgeLLMError, MissingPackageError, RefusalCode


@dataclass(frozen=True)
class BagMessage:
    """``time`` is when it was recorded, in ns; ``data`` the serialised message."""

    topic: str
    time: int
    data: bytes


class Bag:
    """An open recording; use it in a ``with`` statement."""

    def __init__(self, path: Path) -> None:
        """:raises EdgeLLMError: there is none, or it cannot be read; the sentence says why."""
        try:
            from rosbags.rosbag2 import Reader
        except ImportError as error:
            raise MissingPackageError(
                f"rosbags cannot be imported ({error}), which reads recordings; install it with 'pip install rosbags'."
            ) from None
        self.path = path
        try:
            self._reader: Any = Reader(str(path))
            self._reader.open()
        except Exception as error:  # of three libraries, with classes of their own each
            raise _unreadable(path, error) from None

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @property
    def topics(self) -> dict[str, str]:
        """Message types by topic, such as ``sensor_msgs/msg/Image``.

        :raises EdgeLLMError: a topic has several.
        """
        found: dict[str, str] = {}
        for connection in self._reader.connections:
            if found.setdefault(connection.topic, connection.msgtype) != connection.msgtype:
                kinds = f"{found[connection.topic]} and {connection.msgtype}"
                raise _bad(f"{self.path} has messages of two types on {connection.topic} ({kinds}); want one.")
        return found

    def messages(self, topics: Collection[str]) -> Iterator[BagMessage]:
        """Those of these topics in the order of recording.

        :raises EdgeLLMError: the file ends early, or is damaged.
        """
        chosen = [connection for connection in self._reader.connections if connection.topic in topics]
        if not chosen:
            return
        wanted, count = sum(connection.msgcount for connection in chosen), 0
        messages = self._reader.messages([*chosen, *self._written_otherwise(chosen)])
        while True:
            try:
                connection, time, data = next(messages)
            except StopIteration:
                break
            except Exception as error:
                raise _unreadable(self.path, error) from None
            count += 1
            yield BagMessage(connection.topic, int(time), bytes(data))
        if count < wanted:
            raise _bad(f"{self.path} says that it has {wanted} messages and {count} could be read; record it anew.")

    def _written_otherwise(self, connections: Collection[Any]) -> list[Any]:
        """The same with the quality of service that the files hold.

        Recorders write it in more than one way, and the reader passes over what is not equal to metadata.yaml.
        """
        files = getattr(self._reader.storage, "storages", ())
        return [
            connection._replace(ext=own.ext)
            for connection in connections
            for file in files
            for own in file.connections
            if (own.topic, own.msgtype) == (connection.topic, connection.msgtype) and own.ext != connection.ext
        ]


def _unreadable(path: Path, error: Exception) -> EdgeLLMError:
    why = " ".join(str(error).split()).rstrip(".")
    return _bad(f"{path} cannot be read as a recording of rosbag2 ({why}); want its folder.")


def _bad(sentence: str) -> EdgeLLMError:
    return EdgeLLMError(sentence, RefusalCode.BAD_PARAMETER)
