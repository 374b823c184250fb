"""docs/protocol.md: the contract as a page to read, made of its descriptors and comments."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

HEAD = """\
# The protocol

Written by `proto/generate.py` from the comments of `proto/kvstore/v1/*.proto`: do not edit.
[proto/README.md](../proto/README.md) says in which order a worker calls, and what holds everywhere.

"""
# As one reads them; files that are not named here come after these.
ORDER = ("prefix_cache", "lease", "store", "named_pin", "attach", "types", "errors")
# Field numbers in descriptor.proto, which make the paths of SourceCodeInfo.
MESSAGES, ENUMS, SERVICES, SYNTAX = 4, 5, 6, 12
FIELDS, NESTED, NESTED_ENUMS, ONEOFS = 2, 3, 4, 8
METHODS = VALUES = 2
PLAIN_TYPES = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}
Path = tuple[int, ...]


class Comments(NamedTuple):
    """The comments of one file, by the paths of its elements."""

    package: str
    by_path: dict[Path, str]

    def paragraphs(self, path: Path) -> str:
        """Returns an element's comment as Markdown."""
        lines = self.by_path.get(path, "").rstrip().splitlines()
        return "\n".join(line.removeprefix(" ") for line in lines)

    def line(self, path: Path) -> str:
        """Returns an element's comment as one line of a table."""
        return " ".join(self.paragraphs(path).split()).replace("|", "\\|")


def page(files: Sequence[FileDescriptorProto]) -> str:
    """Returns docs/protocol.md for these files, which carry their comments."""
    named = {file.name.rsplit("/", 1)[-1].removesuffix(".proto"): file for file in files}
    known = [name for name in ORDER if name in named]
    names = [*known, *sorted(named.keys() - set(known))]
    contents = [f"- [{title(named[name])}](#{anchor(title(named[name]))})" for name in names]
    parts = [HEAD, "\n".join(contents), "\n"]
    for name in names:
        parts += file_part(named[name])
    return "".join(parts)


def title(file: FileDescriptorProto) -> str:
    """Returns a file's heading."""
    return file.name.rsplit("/", 1)[-1]


def anchor(heading: str) -> str:
    """Returns the anchor that a Markdown viewer gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def file_part(file: FileDescriptorProto) -> Iterator[str]:
    """Yields the part of one file: its services, then its messages and enums."""
    by_path = {tuple(at.path): at.leading_comments for at in file.source_code_info.location}
    comments = Comments(file.package, by_path)
    # The comment before `syntax` is the file's.
    yield f"\n## {title(file)}\n\n{comments.paragraphs((SYNTAX,))}\n"
    for i, service in enumerate(file.service):
        yield from service_part(service, comments, (SERVICES, i))
    for i, message in enumerate(file.message_type):
        yield from message_part(message, message.name, comments, (MESSAGES, i))
    for i, enum in enumerate(file.enum_type):
        yield from enum_part(enum, enum.name, comments, (ENUMS, i))


def service_part(service: ServiceDescriptorProto, comments: Comments, path: Path) -> Iterator[str]:
    """Yields a service with its methods."""
    yield f"\n### {service.name}\n\n{comments.paragraphs(path)}\n"
    for i, method in enumerate(service.method):
        stream = "stream of " if method.server_streaming else ""
        asks = link(method.input_type, comments.package)
        answers = link(method.output_type, comments.package)
        yield f"\n#### {service.name}.{method.name}\n\n"
        yield f"{asks} → {stream}{answers}\n\n{comments.paragraphs((*path, METHODS, i))}\n"


def message_part(
    message: DescriptorProto, name: str, comments: Comments, path: Path
) -> Iterator[str]:
    """Yields a message with its fields, then what is nested in it."""
    yield f"\n### {name}\n\n{comments.paragraphs(path)}\n"
    rows = [
        (
            f"`{field.name}` = {field.number}",
            field_type(field, message, comments.package),
            comments.line((*path, FIELDS, i)),
        )
        for i, field in enumerate(message.field)
    ]
    yield from table(("field", "type", "what it is"), rows)
    for i, enum in enumerate(message.enum_type):
        yield from enum_part(enum, f"{name}.{enum.name}", comments, (*path, NESTED_ENUMS, i))
    for i, nested in enumerate(message.nested_type):
        yield from message_part(nested, f"{name}.{nested.name}", comments, (*path, NESTED, i))


def enum_part(
    enum: EnumDescriptorProto, name: str, comments: Comments, path: Path
) -> Iterator[str]:
    """Yields an enum with its values."""
    yield f"\n### {name}\n\n{comments.paragraphs(path)}\n"
    rows = [
        (f"`{value.name}` = {value.number}", comments.line((*path, VALUES, i)))
        for i, value in enumerate(enum.value)
    ]
    yield from table(("value", "what it says"), rows)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yields a Markdown table, or nothing where it would have no rows."""
    lines = ["| " + " | ".join(row) + " |\n" for row in rows]
    if lines:
        yield "\n| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads) + "\n"
        yield from lines


def field_type(field: FieldDescriptorProto, message: DescriptorProto, package: str) -> str:
    """Returns a field's type, with what can be said of how often it is there."""
    named = link(field.type_name, package) if field.type_name else PLAIN_TYPES[field.type]
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {named}"
    if field.proto3_optional:
        return f"optional {named}"
    if field.HasField("oneof_index"):
        return f"{named}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return named


def link(type_name: str, package: str) -> str:
    """Returns a type's name, as a link where it is ours."""
    ours = f".{package}."
    if not type_name.startswith(ours):
        return type_name.removeprefix(".")
    name = type_name.removeprefix(ours)
    return f"[{name}](#{anchor(name)})"
