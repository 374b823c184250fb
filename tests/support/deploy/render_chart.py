"""A program of its own: renders a chart as `helm template` does, by Helm's own library.

Arguments: the chart's folder. Standard input: values by the names of cases, as JSON. Standard
output: by the same names `manifests` (text by template) or `refused` (why), and `lint`. It is no
module of the tests' process, which forks: the library has a runtime with threads of its own.
"""

import json
import sys
from typing import Any

import helm_python as helm


def rendered(chart: Any, values: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401
    """Returns the manifests for some values, or why Helm refuses those."""
    try:
        chart.validate_schema(values)
        return {"manifests": chart.render(values, name="try", namespace="llm")}
    except helm.HelmError as error:
        return {"refused": str(error)}


def main() -> None:
    """Renders each case and lint the chart."""
    folder = sys.argv[1]
    cases = json.load(sys.stdin)
    with helm.Chart.load(folder) as chart:
        answer = {name: rendered(chart, values) for name, values in cases.items()}
    said = helm.lint(folder, strict=True, kube_version="v1.34.0")
    json.dump({"cases": answer, "lint": said}, sys.stdout)


if __name__ == "__main__":
    main()
