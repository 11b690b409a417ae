//! The bill of materials: every crate in the program, as CycloneDX 1.5 in JSON.

use super::Release;
use crate::shell::{self, Outcome, cargo};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

/// Writes `<name>.cdx.json` beside the program.
pub(super) fn write(release: &Release) -> Outcome {
    let words = ["tree", "--locked", "--package", "firth-server", "--edges", "normal,build"];
    let mut tree = cargo(&words);
    let listed = shell::read(tree.args(["--prefix", "none", "--no-dedupe", "--format", "{p}\t{l}"]))?;
    let lock = fs::read_to_string(shell::root().join("Cargo.lock"))?;
    let json = document(&release.version, &components(&listed), &checksums(&lock));
    Ok(fs::write(release.out.join(format!("{}.cdx.json", release.name())), json)?)
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Component {
    name: String,
    version: String,
    licence: String,
}

/// The crates of cargo's list, each once, without the program itself.
fn components(listed: &str) -> BTreeSet<Component> {
    let read = |line: &str| {
        let (package, licence) = line.split_once('\t')?;
        let mut words = package.split(' ');
        let name = words.next()?.to_owned();
        let version = words.next()?.strip_prefix('v')?.to_owned();
        // Old manifests write `MIT/Apache-2.0` for a choice.
        Some(Component { name, version, licence: licence.trim().replace('/', " OR ") })
    };
    listed.lines().filter_map(read).filter(|component| component.name != "firth-server").collect()
}

/// SHA-256 of each crate that comes from a registry, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut sums = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
            line.and_then(|line| line.strip_suffix('"')).map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(sum)) = (value("name"), value("version"), value("checksum")) {
            sums.insert((name, version), sum);
        }
    }
    sums
}

fn document(
    version: &str,
    components: &BTreeSet<Component>,
    sums: &BTreeMap<(String, String), String>,
) -> String {
    let mut parts = Vec::new();
    for Component { name, version, licence } in components {
        let mut part = format!(
            r#"{{"type":"library","name":"{name}","version":"{version}","purl":"pkg:cargo/{name}@{version}""#
        );
        if !licence.is_empty() {
            let _ = write!(part, r#","licenses":[{{"expression":"{licence}"}}]"#);
        }
        if let Some(sum) = sums.get(&(name.clone(), version.clone())) {
            let _ = write!(part, r#","hashes":[{{"alg":"SHA-256","content":"{sum}"}}]"#);
        }
        part.push('}');
        parts.push(part);
    }
    let subject = format!(
        r#"{{"type":"application","name":"firth","version":"{version}","purl":"pkg:cargo/firth-server@{version}"}}"#
    );
    format!(
        "{{\"bomFormat\":\"CycloneDX\",\"specVersion\":\"1.5\",\"version\":1,\n\"metadata\":{{\"component\":{subject}}},\n\
         \"components\":[\n{}\n]}}\n",
        parts.join(",\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_crate_stands_once_with_licence_and_checksum() {
        let listed = "\
firth-server v0.1.0 (/somewhere)\tApache-2.0 OR MIT
bytes v1.12.0\tMIT
old v0.1.0\tMIT/Apache-2.0
bytes v1.12.0\tMIT
";
        let lock = "\
[[package]]
name = \"bytes\"
version = \"1.12.0\"
source = \"registry\"
checksum = \"abc\"
";
        let json = document("0.1.0", &components(listed), &checksums(lock));
        assert_eq!(json.matches("pkg:cargo/bytes@1.12.0").count(), 1, "{json}");
        assert!(json.contains(r#""hashes":[{"alg":"SHA-256","content":"abc"}]"#), "{json}");
        assert!(json.contains(r#"{"expression":"MIT OR Apache-2.0"}"#), "{json}");
        assert!(!json.contains(r#""name":"firth-server""#), "{json}");
    }
}
