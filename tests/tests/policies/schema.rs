//! The JSON Schema of policies, read by an independent validator: what lint accepts, an editor
//! takes, and most of what lint refuses is underlined.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

/// Prints one line for each policy: `yes`, or why not.
const VALIDATE: &str = "
import fastjsonschema, json, sys
validate = fastjsonschema.compile(json.load(open(sys.argv[1])))
for policy in json.load(open(sys.argv[2])):
    try:
        validate(policy)
        print('yes')
    except fastjsonschema.JsonSchemaException as problem:
        print(problem.message)
";

/// What the validator says of each policy; `None` where it cannot be had.
fn verdicts(policies: &[Value]) -> Option<Vec<String>> {
    let module = std::env::var_os("TIDEGATE_FASTJSONSCHEMA")?;
    let library = Path::new(&module).parent()?.parent()?;
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/policy.schema.json");
    let folder = std::env::temp_dir().join(format!("tidegate-schema-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let file = folder.join("policies.json");
    std::fs::write(&file, Value::from(policies).to_string()).expect("it can be written");
    let mut python = Command::new("python3");
    let python = python.env("PYTHONPATH", library).args(["-c", VALIDATE]).arg(schema).arg(file);
    let output = python.output().expect("python3 has fetched the validator");
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("messages are text");
    Some(text.lines().map(str::to_owned).collect())
}

#[test]
fn an_editor_sees_what_lint_sees() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/policies");
    let files = std::fs::read_dir(folder).expect("the examples are there").filter_map(Result::ok);
    let files = files.map(|file| file.path());
    let good: Vec<Value> = files
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .map(|path| std::fs::read_to_string(path).expect("it can be read"))
        .map(|text| serde_saphyr::from_str(&text).expect("it is YAML"))
        .collect();
    assert!(good.len() > 5, "there are examples");
    let bad = [
        json!({"descriptors": []}),
        json!({"domain": "api", "colour": "red"}),
        json!({"domain": "api", "descriptors": [{"rate": "10/s"}]}),
        json!({"domain": "api", "descriptors": [{"key": "a", "rate": "fast"}]}),
        json!({"domain": "api", "descriptors": [{"key": "a", "rate": "1/s", "burst": -1}]}),
        json!({"domain": "api", "descriptors": [{"key": "a", "rate_limit": {"unit": "eon"}}]}),
        json!({"domain": "api", "descriptors": [{"key": "a", "rate": "1/s", "enforce": "half"}]}),
        json!({"domain": "api", "descriptors": [{"key": "a", "descriptors": [{"ky": "b"}]}]}),
    ];
    let all: Vec<Value> = good.iter().chain(&bad).cloned().collect();
    let Some(verdicts) = verdicts(&all) else { return };
    let (taken, refused) = verdicts.split_at(good.len());
    assert!(taken.iter().all(|verdict| verdict == "yes"), "{taken:?}");
    assert_eq!(refused.len(), bad.len());
    assert!(refused.iter().all(|verdict| verdict != "yes"), "{refused:?}");
}
