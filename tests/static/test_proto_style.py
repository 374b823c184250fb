"""The style of the contract, checked on its descriptors: names, comments, errors."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.rpc import status_pb2

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
LONGEST_LINE = 100
NO_ERRORS = "There are no method-specific errors."
# `NOT_FOUND` / `LEASE_NOT_FOUND`, `PIN_NOT_FOUND`: a status code and its reasons.
ERROR_ITEM = re.compile(r"`([A-Z_]+)` / ((?:`[A-Z_]+`(?:,\s+)?)+)")
# Field numbers in FileDescriptorProto, which make the paths of SourceCodeInfo.
MESSAGES, ENUMS, SERVICES = 4, 5, 6


class Definition(NamedTuple):
    """One commented element of the contract."""

    name: str
    comment: str


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    """Returns the descriptors of our files, with their comments."""
    out = tmp_path_factory.mktemp("descriptors") / "all.binpb"
    sources = [path.relative_to(PROTO).as_posix() for path in sorted(PROTO.rglob("*.proto"))]
    include = [f"-I{PROTO}", f"-I{Path(status_pb2.__file__).parents[2]}"]
    options = ["--include_source_info", f"--descriptor_set_out={out}"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *include, *options, *sources], check=True
    )
    return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def enum_paths(
    enum: EnumDescriptorProto, path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yields the path and name of an enum and of its values."""
    yield path, enum.name
    yield from (((*path, 2, i), value.name) for i, value in enumerate(enum.value))


def message_paths(
    message: DescriptorProto, path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yields the path and name of a message, of its fields, and of what is nested in it."""
    if message.options.map_entry:
        return
    yield path, message.name
    yield from (((*path, 2, i), f"{message.name}.{f.name}") for i, f in enumerate(message.field))
    for i, nested in enumerate(message.nested_type):
        yield from message_paths(nested, (*path, 3, i))
    for i, enum in enumerate(message.enum_type):
        yield from enum_paths(enum, (*path, 4, i))


def definitions(file: FileDescriptorProto) -> Iterator[Definition]:
    """Yields every element of a file that needs a comment, with the comment that it has."""
    comments = {
        tuple(location.path): location.leading_comments.strip()
        for location in file.source_code_info.location
    }
    paths: list[tuple[tuple[int, ...], str]] = []
    for i, message in enumerate(file.message_type):
        paths += message_paths(message, (MESSAGES, i))
    for i, enum in enumerate(file.enum_type):
        paths += enum_paths(enum, (ENUMS, i))
    for i, service in enumerate(file.service):
        paths.append(((SERVICES, i), service.name))
        paths += (
            ((SERVICES, i, 2, j), f"{service.name}.{m.name}") for j, m in enumerate(service.method)
        )
    yield from (Definition(name, comments.get(path, "")) for path, name in paths)


def methods(files: list[FileDescriptorProto]) -> dict[str, str]:
    """Returns the comment of every method, by its full name."""
    named = {d.name: d.comment for file in files for d in definitions(file)}
    names = [f"{s.name}.{m.name}" for file in files for s in file.service for m in s.method]
    return {name: named[name] for name in names}


def enums(files: list[FileDescriptorProto]) -> list[EnumDescriptorProto]:
    """Returns every enum, nested ones included."""
    found = [enum for file in files for enum in file.enum_type]
    waiting = [message for file in files for message in file.message_type]
    while waiting:
        message = waiting.pop()
        found += message.enum_type
        waiting += message.nested_type
    return found


def test_package_is_versioned_and_matches_the_directory(files: list[FileDescriptorProto]) -> None:
    """A file's package ends in its version and is the folder that the file lies in."""
    for file in files:
        assert re.fullmatch(r"[a-z_.]+\.v\d+((alpha|beta)\d+)?", file.package), file.name
        assert Path(file.name).parent.as_posix() == file.package.replace(".", "/")


def test_services_and_messages_are_named_by_the_rules(files: list[FileDescriptorProto]) -> None:
    """A service ends in Service, and each method has a request and a response of its own."""
    used: list[str] = []
    for file in files:
        for service in file.service:
            assert service.name.endswith("Service")
            for method in service.method:
                assert method.input_type == f".{file.package}.{method.name}Request"
                assert method.output_type == f".{file.package}.{method.name}Response"
                used += [method.input_type, method.output_type]
    assert used
    assert len(used) == len(set(used))


def test_enum_values_are_prefixed_and_start_unspecified(files: list[FileDescriptorProto]) -> None:
    """An enum's values begin with its name, and zero says that nothing was said."""
    for enum in enums(files):
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
        assert (enum.value[0].name, enum.value[0].number) == (prefix + "UNSPECIFIED", 0)
        assert [value.name for value in enum.value if not value.name.startswith(prefix)] == []


def test_every_definition_has_a_comment(files: list[FileDescriptorProto]) -> None:
    """Every service, method, message, field, enum and value is commented, in sentences."""
    found = [definition for file in files for definition in definitions(file)]
    assert [name for name, comment in found if not comment] == []


def test_every_method_states_its_errors(files: list[FileDescriptorProto]) -> None:
    """A method lists its errors, or says that it has none of its own."""
    wrong = [
        name
        for name, comment in methods(files).items()
        if NO_ERRORS not in comment and not re.search(r"^\s*Errors\b[^:]*:", comment, re.MULTILINE)
    ]
    assert wrong == []


def test_every_method_states_its_idempotency(files: list[FileDescriptorProto]) -> None:
    """A method says what the same call again does, or that it changes nothing."""
    without_effect = {
        f"{service.name}.{method.name}"
        for file in files
        for service in file.service
        for method in service.method
        if method.options.idempotency_level
    }
    wrong = [
        name
        for name, comment in methods(files).items()
        if not re.search("idempotent|changes nothing", comment, re.IGNORECASE)
        and name not in without_effect
    ]
    assert wrong == []


def test_errors_named_in_comments_exist(files: list[FileDescriptorProto]) -> None:
    """A comment names a reason of ErrorReason, beside the code that the reason's comment says."""
    reasons = {
        d.name.removeprefix("ERROR_REASON_"): d.comment
        for file in files
        for d in definitions(file)
        if d.name.startswith("ERROR_REASON_")
    }
    assert reasons
    wrong = [
        (d.name, code, reason)
        for file in files
        for d in definitions(file)
        for code, listed in ERROR_ITEM.findall(d.comment)
        for reason in re.findall(r"`([A-Z_]+)`", listed)
        if not reasons.get(reason, "").startswith(code)
    ]
    assert wrong == []


def test_lines_are_short_enough_to_be_read_in_a_review() -> None:
    """No line of the contract has more than 100 characters."""
    wrong = [
        f"{path.name}:{number}"
        for path in sorted(PROTO.rglob("*.proto"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > LONGEST_LINE
    ]
    assert wrong == []
