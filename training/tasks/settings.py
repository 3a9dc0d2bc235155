"""What all task settings have in common."""

from kmha.config import EncoderConfig


class TaskSettings:
    """Base of the settings of a task: fields are flags, methods follow from the fields alone."""

    def tokenizations(self, default: str) -> tuple[str, ...]:
        """The tokenizations of the task; one encoder is built for each.

        Args:
            default: The tokenization of the text settings.
        """
        return (default,)

    def encoder(self, config: EncoderConfig) -> EncoderConfig:
        """The shape of the encoder for this task, from the one that the encoder settings describe."""
        return config
