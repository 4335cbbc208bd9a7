//! Documents against the repository they describe.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `name` of every "| `name` |" row.
fn first_cells(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` |"))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[test]
fn every_dependency_of_the_workspace_has_its_reason_on_the_page() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("a manifest");
    let named = manifest["workspace"]["dependencies"].as_table();
    let named: BTreeSet<String> = named
        .expect("a table")
        .iter()
        .filter(|(_, value)| value.get("path").is_none())
        .map(|(name, _)| name.clone())
        .collect();
    assert_eq!(first_cells(&read("docs/dependencies.md")), named);
}

#[test]
fn every_allowed_advisory_has_its_reason_on_the_page() {
    let config: toml::Table = read("deny.toml").parse().expect("TOML");
    let page = read("docs/dependencies.md");
    let ignored = config["advisories"]["ignore"].as_array().expect("a list");
    for advisory in ignored {
        let id = advisory["id"].as_str().expect("an id");
        assert!(page.contains(&format!("| {id} |")), "{id}");
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = fs::read_dir(root.join("docs")).expect("readable");
    let mut pages: Vec<_> = docs.map(|entry| entry.expect("readable").path()).collect();
    pages.extend(["README.md", "CONTRIBUTING.md"].map(|page| root.join(page)));
    let mut broken = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("text");
        let targets = text.split("](").skip(1);
        for target in targets.filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = file.is_empty() || file.contains("://");
            if !outside && !page.with_file_name(file).exists() {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The client of another language, written from the protocol page, reads and
/// writes the pinned bytes of every frame kind it speaks.
#[test]
fn the_python_client_agrees_with_the_golden_vectors() {
    let root = env!("CARGO_MANIFEST_DIR");
    let output = Command::new("python3")
        .arg(format!("{root}/tests/python_client.py"))
        .args(["--vectors", &format!("{root}/wire/tests/vectors")])
        .output()
        .expect("python3 is installed (.ci/run installs it)");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
