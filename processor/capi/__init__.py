"""The command that builds DeepRec Processor's C interface, which the extension `deeprec` has."""

__all__: list[str] = []
