"""Errors a user can cause or mend. Each message is one line that names the cure."""

from __future__ import annotations


class EdgeError(Exception):
    """Base of all our errors; `exit_code` is what the CLI leaves with (1 failure, 2 usage)."""

    exit_code = 1


class NativeLibraryError(EdgeError):
    """The patched library is missing, stale, or answered with an error code."""


class DownloadError(EdgeError):
    """A model could not be fetched; running the same command again resumes."""


class ModelError(EdgeError):
    """A model file, name or pair of models that cannot be used."""

    exit_code = 2


class MaskError(EdgeError):
    """A layer mask that is malformed, impossible, or of another model."""

    exit_code = 2


class PromptError(EdgeError):
    """A prompt that is empty or does not fit the context, or a file that holds no prompts."""

    exit_code = 2


class BusyError(EdgeError):
    """A generation that another one has taken the model's cache from."""


class TraceError(EdgeError):
    """A trace or a device profile that is malformed, or that cannot be replayed with the other."""

    exit_code = 2
