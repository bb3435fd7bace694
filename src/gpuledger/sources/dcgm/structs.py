"""The structures of DCGM's interface that are used here.

Sizes and offsets are the same in every release from 3.0.4 to 4.6.0. Each structure begins with its size and the number
of its layout in one word, so that a library with another layout refuses the call instead of writing past the end.
"""

from __future__ import annotations

from ctypes import (
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint,
    c_ushort,
    sizeof,
)

MOST_GPUS = 32


def version_word(kind: type[Structure], number: int) -> int:
    """What the first field of a structure must hold."""
    return sizeof(kind) | number << 24


class Summary64(Structure):
    """Lowest, highest and mean of the samples in a window."""

    _fields_ = (("minimum", c_int64), ("maximum", c_int64), ("average", c_int64))


class Summary32(Structure):
    """The same, in half the width."""

    _fields_ = (("minimum", c_int), ("maximum", c_int), ("average", c_int))


class ProcessUtilization(Structure):
    """Of one process; too low by as many times as processes are busy, and not always filled in, so never read."""

    _fields_ = (("pid", c_uint), ("sm", c_double), ("memory", c_double))


class PidSingleInfo(Structure):
    """dcgmPidSingleInfo_t: one GPU while a process was on it."""

    _fields_ = (
        ("gpu_id", c_uint),
        ("energy_mj", c_int64),
        ("pcie_receive", Summary64),
        ("pcie_transmit", Summary64),
        ("pcie_replays", c_int64),
        ("start_us", c_int64),
        ("end_us", c_int64),
        ("process_utilization", ProcessUtilization),
        ("sm_pct", Summary32),
        ("memory_pct", Summary32),
        ("ecc_single_bit", c_uint),
        ("ecc_double_bit", c_uint),
        ("memory_clock", Summary32),
        ("sm_clock", Summary32),
        ("xids", c_int),
        ("xid_times_us", c_int64 * 10),
        ("other_compute", c_int),
        ("other_compute_pids", c_uint * 16),
        ("other_graphics", c_int),
        ("other_graphics_pids", c_uint * 16),
        ("max_memory_bytes", c_int64),
        ("violations_us", c_int64 * 6),
        ("overall_health", c_uint),
        ("incidents", c_uint),
        ("systems", c_uint * 2 * 10),
    )


class PidInfo(Structure):
    """dcgmPidInfo_v2: a process, and each GPU it was on."""

    _fields_ = (
        ("version", c_uint),
        ("pid", c_uint),
        ("unused", c_uint),
        ("gpu_count", c_int),
        ("summary", PidSingleInfo),
        ("gpus", PidSingleInfo * MOST_GPUS),
    )


class EmbeddedParameters(Structure):
    """dcgmStartEmbeddedV2Params_v1, which 3.x and 4.x both take; 4.3 has a larger one."""

    _fields_ = (
        ("version", c_uint),
        ("mode", c_int),
        ("handle", c_size_t),
        ("log_file", c_char_p),
        ("severity", c_int),
        ("deny_count", c_uint),
        ("deny", c_uint * 10),
    )


class ConnectParameters(Structure):
    """dcgmConnectV2Params_v2."""

    _fields_ = (("version", c_uint), ("persist", c_uint), ("timeout_ms", c_uint), ("is_unix_socket", c_uint))


class VersionInfo(Structure):
    """dcgmVersionInfo_v2: `version:4.2.3;arch:x86_64;...`."""

    _fields_ = (("version", c_uint), ("text", c_char * 512))


class EntityPair(Structure):
    """dcgmGroupEntityPair_t: which kind of thing, and which of them."""

    _fields_ = (("kind", c_uint), ("number", c_uint))


class FieldValue(Structure):
    """dcgmFieldValue_v2, of which only texts are read here."""

    _fields_ = (
        ("version", c_uint),
        ("kind", c_uint),
        ("number", c_uint),
        ("field", c_ushort),
        ("type", c_ushort),
        ("status", c_int),
        ("unused", c_uint),
        ("time_us", c_int64),
        ("text", c_char * 4096),
    )


PID_INFO_VERSION = version_word(PidInfo, 2)
EMBEDDED_VERSION = version_word(EmbeddedParameters, 1)
CONNECT_VERSION = version_word(ConnectParameters, 2)
VERSION_INFO_VERSION = version_word(VersionInfo, 2)
