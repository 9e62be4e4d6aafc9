"""Write scalars for TensorBoard with TensorFlow alone: the package tensorboard is needed only to view them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from freshet_serving.compiler.frameworks import summary_pb2, tf


class TensorBoardLog:
    def __init__(self, folder: Path) -> None:
        """Create the event file; raise OSError if the folder cannot be written."""
        plugin = summary_pb2.SummaryMetadata.PluginData(plugin_name="scalars")
        self._metadata = summary_pb2.SummaryMetadata(plugin_data=plugin, data_class=summary_pb2.DATA_CLASS_SCALAR)
        try:
            self._writer = tf.summary.create_file_writer(str(folder))
        except tf.errors.OpError as error:
            raise OSError(error.message) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        summary = summary_pb2.Summary()
        for tag, value in values.items():
            # One message for all tags: one operator each would cost as much as a training step.
            tensor = tf.make_tensor_proto(value, tf.float32)
            summary.value.add(tag=tag, metadata=self._metadata, tensor=tensor)
        try:
            with self._writer.as_default():
                tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step)
            self._writer.flush()
        except tf.errors.OpError as error:
            raise OSError(error.message) from error
