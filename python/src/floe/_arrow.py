"""Results as Arrow tables. Needs pyarrow: `pip install 'floe-fs[arrow]'`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, Mapping, NamedTuple

from ._rows import FINDING_COLUMNS, IMAGE_COLUMNS, finding_rows, image_row

if TYPE_CHECKING:
    import pyarrow

    from ._report import Report


class Tables(NamedTuple):
    """The results of some checks, with the columns that `floe_spark` has."""

    #: One row for each image.
    images: pyarrow.Table
    #: One row for each finding.
    findings: pyarrow.Table


def to_arrow(reports: Iterable[Report]) -> Tables:
    """The images and the findings of some reports as two Arrow tables.

    Raises `ImportError` if pyarrow is not installed.
    """
    documents = [report.document for report in reports]
    images = _table(map(image_row, documents), IMAGE_COLUMNS)
    found = (row for document in documents for row in finding_rows(document))
    return Tables(images, _table(found, FINDING_COLUMNS))


def _table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pyarrow.Table:
    import pyarrow

    types = {"text": pyarrow.string(), "integer": pyarrow.int64(), "real": pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    return pyarrow.Table.from_pylist(list(rows), schema=schema)
