//! Arbitrary bodies from a string of random bytes. Bodies are drawn, not
//! listed as strategies, so that a new field breaks the build here.

use tidegate_wire::message::*;

/// Random bytes, used up from the front; zeros when they run out.
pub struct Source<'a>(pub &'a [u8]);

impl Source<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let have = N.min(self.0.len());
        out[..have].copy_from_slice(&self.0[..have]);
        self.0 = &self.0[have..];
        out
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(u16::draw(self)) % bound
    }
}

pub trait Draw {
    fn draw(source: &mut Source<'_>) -> Self;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Draw for $type {
            fn draw(source: &mut Source<'_>) -> Self {
                <$type>::from_le_bytes(source.bytes())
            }
        }
    )*};
}

numbers!(u16 u32 u64);

/// Not by `numbers!`, because a list of bytes is drawn in one piece.
impl Draw for u8 {
    fn draw(source: &mut Source<'_>) -> Self {
        source.bytes::<1>()[0]
    }
}

impl Draw for [u8; 16] {
    fn draw(source: &mut Source<'_>) -> Self {
        source.bytes()
    }
}

/// Lengths around those where the layout of a text changes: 8 bytes are the
/// most inside the field, 63 the most in six bits.
impl Draw for String {
    fn draw(source: &mut Source<'_>) -> Self {
        let letters = [0, 1, 3, 7, 8, 9, 10, 62, 63, 64, 65, 255, 300][source.below(13)];
        let alphabet = ['a', 'Z', '/', '\0', '\u{7F}', 'é', '日', '🦀'];
        (0..letters)
            .map(|_| alphabet[source.below(alphabet.len())])
            .collect()
    }
}

impl<T: Draw> Draw for Vec<T> {
    fn draw(source: &mut Source<'_>) -> Self {
        (0..source.below(5)).map(|_| T::draw(source)).collect()
    }
}

macro_rules! bodies {
    ($($name:ident { $($field:ident)* })*) => {$(
        impl Draw for $name {
            fn draw(source: &mut Source<'_>) -> Self {
                $name { $($field: Draw::draw(source),)* }
            }
        }
    )*};
}

/// Every extension drawn for a round trip must be one that is accepted.
impl Draw for Extension {
    fn draw(source: &mut Source<'_>) -> Self {
        Extension {
            kind: u16::draw(source) % Extension::CRITICAL,
            bytes: Draw::draw(source),
        }
    }
}

crate::with_fields!(bodies);
