"""Data sets read from a folder of the user's, in the format in which they are published: docs/reference/data-sets.md.

Nothing is downloaded: an error names the expected files, every folder tried, and the source of the data.  A set is a
``FolderSet``; its ``find(given)`` is ``PublishedDataset.find``: the folder that the scenario gives (``data.folders``),
else ``$EDGEFL_DATA/<name>``, else ``data/<name>`` in the working directory.  No pickle is ever loaded.
"""

from edgefl.data.folders.places import PublishedDataset

__all__ = ["PublishedDataset"]
