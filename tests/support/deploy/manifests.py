"""Manifests of Kubernetes as tests look at them: pods, containers, and what a store is told."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

Document = dict[str, Any]
UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
STORE = "store"


def quantity(text: str) -> int:
    """Returns the bytes of a quantity such as 5Gi."""
    found = re.fullmatch(r"(\d+)([A-Za-z]*)", text)
    assert found is not None, text
    return int(found[1]) * UNITS[found[2]]


def parsed(text: str) -> list[Document]:
    """Returns the documents of a YAML text, without empty ones."""
    return [each for each in yaml.safe_load_all(text) if each]


def resources(folder: Path) -> Iterator[Document]:
    """Yields the documents that a folder's kustomization names, as they stand there."""
    (kustomization,) = parsed((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    for name in kustomization["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            yield from resources(path)
        else:
            yield from parsed(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Container:
    """One container of a pod."""

    spec: Document

    @property
    def name(self) -> str:
        """Its name in the pod."""
        return str(self.spec["name"])

    @property
    def image(self) -> str:
        """The image's name, without registry and tag."""
        return re.sub(r"(.*/)?([^:]+):.*", r"\2", str(self.spec["image"]))

    @property
    def tag(self) -> str:
        """The image's tag."""
        return str(self.spec["image"]).rpartition(":")[2]

    @property
    def env(self) -> dict[str, str]:
        """Its variables."""
        return {each["name"]: each["value"] for each in self.spec.get("env", ())}

    @property
    def memory(self) -> int:
        """Its memory limit, in bytes."""
        return quantity(self.spec["resources"]["limits"]["memory"])

    @property
    def mounts(self) -> dict[str, str]:
        """The mount path of each volume, by the volume's name."""
        return {each["name"]: each["mountPath"] for each in self.spec.get("volumeMounts", ())}

    @property
    def args(self) -> list[str]:
        """Its arguments, options apart from their values."""
        return [
            word
            for each in self.spec.get("args", ())
            for word in (each.split("=", 1) if each.startswith("--") else [each])
        ]


@dataclass(frozen=True)
class Pod:
    """The pod of a workload; ``kind`` is the workload's."""

    kind: str
    name: str
    spec: Document
    metadata: Document

    @classmethod
    def all_of(cls, documents: Iterable[Document]) -> list[Self]:
        """Returns the pods of documents."""
        found = []
        for each in documents:
            template = each if each["kind"] == "Pod" else each.get("spec", {}).get("template", {})
            if "containers" in template.get("spec", {}):
                name = each["metadata"]["name"]
                metadata = template.get("metadata", {})
                found.append(cls(each["kind"], name, template["spec"], metadata))
        return found

    @property
    def containers(self) -> dict[str, Container]:
        """All containers by their names, those that start first in front."""
        every = [*self.spec.get("initContainers", ()), *self.spec["containers"]]
        return {each["name"]: Container(each) for each in every}

    @property
    def store(self) -> Container | None:
        """The store's, if it has one."""
        return self.containers.get(STORE)

    @property
    def volumes(self) -> Mapping[str, Document]:
        """The volumes by their names."""
        return {each["name"]: each for each in self.spec.get("volumes", ())}
