"""What somebody heard of a stream, put together without dropping or sorting anything."""

from abc import ABC, abstractmethod

from shared.messages.stream import (
    ChoiceOutput,
    ChunkMessage,
    DoneMessage,
    FailedMessage,
    StatusMessage,
    StreamMessage,
)


class Heard(ABC):
    """Views of the messages that came."""

    @property
    @abstractmethod
    def messages(self) -> list[StreamMessage]:
        """In the order in which they came."""

    @property
    def statuses(self) -> list[str]:
        return [message.status for message in self.messages if isinstance(message, StatusMessage)]

    @property
    def ends(self) -> list[DoneMessage | FailedMessage]:
        return [
            message for message in self.messages if isinstance(message, DoneMessage | FailedMessage)
        ]

    def outputs(self, choice: int = 0) -> list[ChoiceOutput]:
        found: list[ChoiceOutput] = []
        for message in self.messages:
            if isinstance(message, ChunkMessage):
                found.append(message.output)
            elif isinstance(message, DoneMessage):
                found.extend(message.outputs)
        return [output for output in found if output.choice == choice]

    def indexes(self, choice: int = 0) -> list[int]:
        """Of the tokens; a client that loses none and gets none twice counts from 0."""
        return [
            output.index + place
            for output in self.outputs(choice)
            for place in range(len(output.token_ids))
        ]

    def token_ids(self, choice: int = 0) -> list[int]:
        return [token for output in self.outputs(choice) for token in output.token_ids]

    def text(self, choice: int = 0) -> str:
        return "".join(output.text for output in self.outputs(choice))
