//! axe-core out of the npm registry, into `.tools/axe`: what checks the console's accessibility.
//! Nothing of it enters the product.

use crate::shell::{self, Outcome, program};
use std::env;

const VERSION: &str = "4.14.0";

/// Makes sure that the tests find it; `FIRTH_AXE` names another copy of `axe.min.js`.
pub(super) fn ensure() -> Outcome {
    let home = shell::root().join(".tools/axe");
    let folder = home.join("node_modules/axe-core");
    let is_current = std::fs::read_to_string(folder.join("package.json"))
        .is_ok_and(|about| about.contains(&format!("\"version\": \"{VERSION}\"")));
    if env::var_os("FIRTH_AXE").is_some() || is_current {
        return Ok(());
    }
    std::fs::create_dir_all(&home)?;
    let package = format!("axe-core@{VERSION}");
    let mut install =
        program("npm", &["install", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts"]);
    shell::run(install.arg("--prefix").arg(&home).arg(package))
}
