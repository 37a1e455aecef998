//! Compares the layouts drawn in `docs/farm.md` with the constants.

use herdwick_conformance::document::{assert_drawn, code_table, field_table};
use herdwick_farm::{CONTROL_FIELDS, LINE_FIELDS, Operation, POINTER_FIELDS, ReplyCode};
use herdwick_layout::wire::Field;

const FARM_MD: &str = include_str!("../../../../docs/farm.md");

fn table(fields: &[Field]) -> String {
    let fields = fields.iter();
    field_table(fields.map(|field| (field.name, field.offset, field.bytes, field.meaning)))
}

#[test]
fn layouts_are_drawn_as_they_are() {
    assert_drawn(FARM_MD, "line", &table(&LINE_FIELDS));
    assert_drawn(FARM_MD, "pointer", &table(&POINTER_FIELDS));
    assert_drawn(FARM_MD, "control", &table(&CONTROL_FIELDS));
    let operations = Operation::ALL.map(|operation| (format!("{operation:?}"), operation as u8));
    assert_drawn(FARM_MD, "operations", &code_table("operation", operations));
    let statuses = ReplyCode::ALL.map(|code| (format!("{code:?}"), code as u8));
    assert_drawn(FARM_MD, "statuses", &code_table("status", statuses));
}
