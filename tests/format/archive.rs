//! A directory as text: small though its files are mostly zeros, and readable.
//!
//! ```text
//! file shard-00/super-a
//! 5449444553555052 01000000 4000*00 ff
//! ```
//!
//! A file is its bytes in hexadecimal digits; `COUNT*BYTE` is a run of one byte.
//! Spaces and line ends mean nothing.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path};

/// Runs from this length on are written as such.
const RUN: usize = 12;
/// Words of text in a line.
const LINE_WORDS: usize = 4;
/// Bytes of one word of digits.
const WORD_BYTES: usize = 32;

/// Relative path → contents.
pub type Files = BTreeMap<String, Vec<u8>>;

/// All files below `root`.
pub fn read_tree(root: &Path) -> Files {
    let mut files = Files::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            files.insert(name.to_owned(), fs::read(&path).unwrap());
        }
    }
    files
}

/// Makes the files below `root`.
pub fn write_tree(root: &Path, files: &Files) {
    for (name, bytes) in files {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

pub fn to_text(files: &Files) -> String {
    let mut text = String::new();
    for (name, bytes) in files {
        writeln!(text, "file {name}").unwrap();
        for line in words(bytes).chunks(LINE_WORDS) {
            writeln!(text, "{}", line.join(" ")).unwrap();
        }
    }
    text
}

fn words(bytes: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    let mut plain = String::new();
    let finish = |plain: &mut String, words: &mut Vec<String>| {
        if !plain.is_empty() {
            words.push(std::mem::take(plain));
        }
    };
    for run in bytes.chunk_by(|a, b| a == b) {
        if run.len() >= RUN {
            finish(&mut plain, &mut words);
            words.push(format!("{}*{:02x}", run.len(), run[0]));
            continue;
        }
        for byte in run {
            write!(plain, "{byte:02x}").unwrap();
            if plain.len() == 2 * WORD_BYTES {
                finish(&mut plain, &mut words);
            }
        }
    }
    finish(&mut plain, &mut words);
    words
}

pub fn from_text(text: &str) -> Files {
    let mut files = Files::new();
    let mut name = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(file) = line.strip_prefix("file ") {
            name = file.to_owned();
            files.insert(name.clone(), Vec::new());
            continue;
        }
        let bytes = files
            .get_mut(&name)
            .expect("a file's line before its bytes");
        for word in line.split_whitespace() {
            match word.split_once('*') {
                Some((count, byte)) => {
                    let count: usize = count.parse().unwrap();
                    bytes.resize(bytes.len() + count, digits(byte)[0]);
                }
                None => bytes.extend(digits(word)),
            }
        }
    }
    files
}

fn digits(word: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).expect("a digit") as u8;
    let pairs = word.as_bytes().chunks(2);
    pairs
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

#[test]
fn a_directory_as_text_reads_back() {
    let mut long: Vec<u8> = (0..=255).cycle().take(5_000).collect();
    long.extend(vec![0; 70_000]);
    long.extend([7; RUN - 1]);
    let files = Files::from([
        ("empty".to_owned(), Vec::new()),
        ("shard-00/long".to_owned(), long),
        ("zeros".to_owned(), vec![0; 1 << 20]),
    ]);
    let text = to_text(&files);
    assert!(text.len() < 12_000, "{} bytes", text.len());
    assert_eq!(from_text(&text), files);
    let directory = tempfile::tempdir().unwrap();
    write_tree(directory.path(), &files);
    assert_eq!(read_tree(directory.path()), files);
}
