//! Real reports conform to docs/floe-check.schema.json and docs/floe-repair.schema.json.

use serde_json::Value;

use super::{floe_on, image};

/// The part of JSON Schema that our schema uses: type, enum, required, properties, items. Members
/// missing from the schema are faults, so that none is undocumented.
fn judge(schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allowed = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().any(|one| one == kind),
        one => one == kind || (one == "number" && kind == "integer"),
    };
    if !allowed {
        faults.push(format!("{at} is a {kind}"));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        faults.push(format!("{at} is {value}"));
    }
    let required = schema["required"].as_array().filter(|_| value.is_object());
    for name in required.into_iter().flatten() {
        if value.get(name.as_str().unwrap()).is_none() {
            faults.push(format!("{at} lacks {name}"));
        }
    }
    if let (Some(properties), Some(members)) = (schema["properties"].as_object(), value.as_object())
    {
        for (name, member) in members {
            match properties.get(name) {
                Some(schema) => judge(schema, member, &format!("{at}.{name}"), faults),
                None => faults.push(format!("{at}.{name} is not in the schema")),
            }
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        judge(&schema["items"], item, &format!("{at}[{index}]"), faults);
    }
}

fn faults(value: &Value) -> Vec<String> {
    against(include_str!("../../../../docs/floe-check.schema.json"), value)
}

fn against(schema: &str, value: &Value) -> Vec<String> {
    let schema: Value = serde_json::from_str(schema).unwrap();
    let mut faults = Vec::new();
    judge(&schema, value, "report", &mut faults);
    faults
}

/// Faults of a report of `floe repair --json`, according to its schema.
pub(crate) fn repair_faults(value: &Value) -> Vec<String> {
    against(include_str!("../../../../docs/floe-repair.schema.json"), value)
}

#[test]
fn reports_fit_the_schema() {
    let Some(image) = image("ext4-1k") else { return };
    for damage in [None, Some((1024 + 0x10, [7, 0, 0, 0])), Some((1024 + 0x38, [0; 4]))] {
        if let Some((at, bytes)) = damage {
            image.write(at, &bytes).unwrap();
        }
        let ran = floe_on(&["check", "--json"], image.path());
        let value: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(faults(&value), Vec::<String>::new());
        assert_eq!(value["exit_code"], ran.code);
    }
    image.write(0, &vec![0; usize::try_from(image.size()).unwrap()]).unwrap();
    let ran = floe_on(&["check", "--json"], image.path());
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(faults(&value), Vec::<String>::new());
    assert_eq!(value["verdict"], "incomplete");
    assert!(value["error"].as_str().unwrap().contains("superblock"));
}

#[test]
fn the_judge_finds_faults() {
    assert!(!faults(&serde_json::json!({ "schema": "other", "surplus": 1 })).is_empty());
}
