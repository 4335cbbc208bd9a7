//! F73: odd names are usable, or refused where a queue is created.

use tidegate_wire::{error::WireError, limits::MAX_NAME_BYTES, name::check_name};

#[test]
fn f73_odd_but_printable_names_are_names() {
    let longest = "n".repeat(MAX_NAME_BYTES);
    let longest_multibyte = "é".repeat(MAX_NAME_BYTES / 2);
    for name in [
        "a",
        " ",
        "a/b",
        "/",
        ".",
        "..",
        "%2F",
        "%",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{200b}",
        "\u{feff}",
        "\u{a0}",
        "\u{10FFFF}",
        "\"quoted\"",
        "back\\slash",
        "日本語",
        "🦀",
        &longest,
        &longest_multibyte,
    ] {
        assert_eq!(check_name(name), Ok(name));
    }
}

#[test]
fn f73_composed_and_decomposed_accents_are_two_names() {
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    assert_ne!(check_name(composed), check_name(decomposed));
}

#[test]
fn f73_an_empty_name_is_refused() {
    assert!(matches!(check_name(""), Err(WireError::BadName { .. })));
}

#[test]
fn f73_the_limit_counts_bytes_not_letters() {
    assert!(check_name(&"n".repeat(256)).is_err());
    assert!(check_name(&"é".repeat(128)).is_err());
    assert!(check_name(&"🦀".repeat(64)).is_err());
    assert!(check_name(&"n".repeat(100_000)).is_err());
}

#[test]
fn f73_every_control_character_is_refused_wherever_it_stands() {
    let controls = (0..=0x1F).chain(0x7F..=0x9F);
    for code in controls {
        let control = char::from_u32(code).expect("a scalar value");
        for name in [
            format!("{control}"),
            format!("{control}b"),
            format!("a{control}"),
            format!("a{control}b"),
        ] {
            assert!(check_name(&name).is_err(), "U+{code:04X}");
        }
    }
}
