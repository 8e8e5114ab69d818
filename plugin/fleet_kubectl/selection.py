"""Builds the objects of `redrive` and `reset` from options, and the same filters for `fleet-consumer failed`. Pure."""

import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet_consumer.contract import failure_reasons
from fleet_consumer.contract.naming import parse_delay
from fleet_consumer.contract.pod import WORKER_CONFIG
from fleet_kubectl.errors import OptionInvalid
from fleet_operator.clients.kinds import OFFSET_RESET, REDRIVE
from fleet_operator.planning import times

JsonObject = Mapping[str, Any]

FAILED_COMMAND: Final = ("fleet-consumer", "failed")
CLASS: Final = re.compile(r"[\w.<>]+")
PLACE: Final = re.compile(r"(?a:(\d{1,10}):(\d{1,16}))")
PARTITION: Final = re.compile(r"(?a:(.+)-(\d{1,10}):(\d{1,16}))")
NAME_MAX: Final = 40
"""Maximum length of a Redrive's name (crds/consumerfleet.io_redrives.yaml)."""
PREVIEW_TTL_S: Final = 600
"""TTL in seconds of the dry-run object that a preview creates."""


def moment(text: str | None, option: str, now: float) -> str | None:
    """Convert an option to an RFC 3339 time. The option is a time, or a duration such as `2h` for two hours ago. Raises
    OptionInvalid."""
    if text is None:
        return None
    try:
        return times.to_text(now - parse_delay(text))
    except ValueError:
        at = times.from_text(text)
    if at is None:
        raise OptionInvalid(
            f"{option} {text!r} is not a time; write 2026-11-21T08:00:00Z, or 30s, 5m, 2h or 7d for that long ago"
        )
    return times.to_text(at) if at == int(at) else times.to_milli_text(at)


def reasons_of(words: Sequence[str]) -> list[str]:
    """Convert reasons, which may be in upper or lower case, to the API's spelling. Raises OptionInvalid."""
    try:
        return [failure_reasons.to_api(failure_reasons.from_api(word)) for word in words]
    except ValueError as error:
        known = ", ".join(failure_reasons.to_api(reason) for reason in failure_reasons.FailureReason)
        raise OptionInvalid(f"--reason: {error}; choose one of {known}") from error


def class_regex(classes: Sequence[str]) -> str:
    """Build an `errorRegex` that matches error classes, given by qualified name or by the part after the last dot.
    Raises OptionInvalid.

    A Redrive matches the regular expression against `class: message`, and a class name has no colon.
    """
    for name in classes:
        if not CLASS.fullmatch(name):
            raise OptionInvalid(f"--error-class {name!r} is not the name of a class; use --error-regex for other text")
    return f"^(?:[^:]*\\.)?(?:{'|'.join(map(re.escape, classes))}): "


def place_of(text: str) -> dict[str, int]:
    found = PLACE.fullmatch(text)
    if found is None:
        raise OptionInvalid(
            f"--record {text!r}: write PARTITION:OFFSET as `kubectl fleet failed list` shows it, such as 3:1841"
        )
    return {"partition": int(found[1]), "offset": int(found[2])}


def redrive_filter(options: Namespace, now: float) -> dict[str, Any]:
    """Build `spec.filter` of a Redrive; empty if every record matches. Raises OptionInvalid."""
    if options.error_class and options.error_regex:
        raise OptionInvalid("--error-class and --error-regex exclude each other; put the class into --error-regex")
    regex = class_regex(options.error_class) if options.error_class else options.error_regex
    found = {
        "reasons": sorted(set(reasons_of(options.reason))),
        "errorRegex": regex,
        "keyRegex": options.key_regex,
        "fromTime": moment(options.start, "--from", now),
        "toTime": moment(options.end, "--to", now),
    }
    return {name: value for name, value in found.items() if value}


def until_now(options: Namespace, now: float) -> Namespace:
    """Limit the options of a redrive to records that failed before `now`, so that the preview shows the records that
    will be put back.

    Records that are selected by partition and offset need no limit.
    """
    ends = options.end is not None or options.record
    return options if ends else Namespace(**{**vars(options), "end": times.to_milli_text(now)})


def redrive_body(options: Namespace, now: float, *, dry_run: bool) -> dict[str, Any]:
    """Build the Redrive for these options. Raises OptionInvalid."""
    spec: dict[str, Any] = {"groupRef": {"name": options.group}}
    if wanted := redrive_filter(options, now):
        spec["filter"] = wanted
    if options.record:
        spec["records"] = [place_of(text) for text in dict.fromkeys(options.record)]
    if options.max_records is not None:
        spec["maxRecords"] = options.max_records
    if options.max_redrives is not None:
        spec["maxRedrives"] = options.max_redrives
    if options.rate is not None and not dry_run:
        spec["rate"] = {"recordsPerSecond": options.rate}
    if dry_run:
        spec |= {"dryRun": True, "ttlSecondsAfterFinished": PREVIEW_TTL_S}
    return _object(REDRIVE, run_name(options, now, dry_run=dry_run), spec)


def reset_body(options: Namespace, now: float, *, dry_run: bool) -> dict[str, Any]:
    """Build the OffsetReset for these options. Raises OptionInvalid."""
    spec: dict[str, Any] = {"groupRef": {"name": options.group}}
    word = options.to.lower()
    if (word == "offsets") != bool(options.offset):
        raise OptionInvalid("--to offsets needs --offset TOPIC-PARTITION:OFFSET; other values of --to exclude --offset")
    if word in ("earliest", "latest", "offsets"):
        spec["to"] = word.capitalize()
    else:
        spec |= {"to": "Time", "time": moment(options.to, "--to", now)}
    if options.offset:
        spec["offsets"] = [partition_of(text) for text in options.offset]
    if options.topic:
        spec["topics"] = sorted(set(options.topic))
    if dry_run:
        spec |= {"dryRun": True, "ttlSecondsAfterFinished": PREVIEW_TTL_S}
    else:
        spec["notAfter"] = times.to_text(now + options.not_after)
    return _object(OFFSET_RESET, run_name(options, now, dry_run=dry_run), spec)


def reset_to_plan(body: JsonObject, plan: JsonObject) -> dict[str, Any] | None:
    """The OffsetReset `body` with the offsets from the dry run's status, so that the reset sets the offsets that were
    shown.

    None if the status does not list an offset for each partition, because the OffsetReset would then be incomplete.
    """
    resolved = plan.get("resolved") or []
    if not resolved or plan.get("partitions", len(resolved)) > len(resolved):
        return None
    kept = {name: value for name, value in body["spec"].items() if name not in ("time", "topics")}
    return {**body, "spec": {**kept, "to": "Offsets", "offsets": resolved}}


def partition_of(text: str) -> dict[str, Any]:
    found = PARTITION.fullmatch(text)
    if found is None:
        raise OptionInvalid(f"--offset {text!r}: write TOPIC-PARTITION:OFFSET, such as orders-3:1734")
    return {"topic": found[1], "partition": int(found[2]), "offset": int(found[3])}


def run_name(options: Namespace, now: float, *, dry_run: bool) -> str:
    """The name of a run: the option `--name`, or the group's name and the time, because each run needs a unique
    name."""
    if options.name and not dry_run:
        return str(options.name)
    stamp = re.sub(r"\D", "", times.to_milli_text(now))[2:]
    tail = f"-{stamp}-preview" if dry_run else f"-{stamp}"
    head = re.sub(r"[^a-z0-9-]", "-", options.group)
    head = head if head[:1].isalpha() else f"r-{head}"
    return head[: NAME_MAX - len(tail)].rstrip("-") + tail


def failed_command(part: str, *arguments: str) -> tuple[str, ...]:
    """The command `fleet-consumer failed` in a worker's pod, with the worker's settings file, which has brokers and
    group."""
    return (*FAILED_COMMAND, part, *arguments, "--config", WORKER_CONFIG)


def failed_arguments(options: Namespace, now: float) -> list[str]:
    """The filters that Redrives and `fleet-consumer failed` have in common, as options of `fleet-consumer failed`."""
    found = [word for reason in options.reason for word in ("--reason", reason)]
    found += [word for name in options.error_class for word in ("--error-class", name)]
    for option, text in (("--from", options.start), ("--to", options.end)):
        at = moment(text, option, now)
        if at is not None:
            found += [option, at]
    return found


def _object(kind: Any, name: str, spec: JsonObject) -> dict[str, Any]:
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": dict(spec)}
