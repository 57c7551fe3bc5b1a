//! How plain structs and enumerations get their codec. Unions are written by hand.

/// Lists the fields of a plain struct once, in wire order, for `Decode`, `Encode` and `Debug`.
///
/// A field is `name` (its type brings its own codec), `name: u32` (a primitive, so that errors
/// carry the field's name) or `name: opaque(BOUND)` (borrowed bytes, never longer than `BOUND`).
macro_rules! xdr_struct {
    ($name:ident { $($fields:tt)* }) => {
        $crate::xdr::xdr_struct!(@impls [$name] [$name] $name { $($fields)* });
    };
    ($name:ident<'a> { $($fields:tt)* }) => {
        $crate::xdr::xdr_struct!(@impls [$name<'a>] [$name<'_>] $name { $($fields)* });
    };
    (@impls [$($decoded:tt)*] [$($encoded:tt)*] $name:ident {
        $($field:ident $(: $kind:ident $(($bound:expr))?)?),+ $(,)?
    }) => {
        impl<'a> $crate::xdr::Decode<'a> for $($decoded)* {
            fn decode(r: &mut $crate::xdr::Reader<'a>) -> Result<Self, $crate::xdr::DecodeError> {
                Ok(Self { $($field: {
                    const _WHAT: &str = concat!(stringify!($name), ".", stringify!($field));
                    $crate::xdr::xdr_struct!(@decode r _WHAT $(, $kind $(($bound))?)?)
                }),+ })
            }
        }

        impl $crate::xdr::Encode for $($encoded)* {
            fn encode(&self, w: &mut $crate::xdr::Writer) {
                $($crate::xdr::xdr_struct!(@encode w self.$field $(, $kind $(($bound))?)?);)+
            }
        }

        impl std::fmt::Debug for $($encoded)* {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(
                    stringify!($field),
                    &$crate::xdr::xdr_struct!(@debug self.$field $(, $kind $(($bound))?)?),
                ))+.finish()
            }
        }
    };
    (@decode $r:ident $what:ident) => { $crate::xdr::Decode::decode($r)? };
    (@decode $r:ident $what:ident, opaque($bound:expr)) => { $r.opaque($bound, $what)? };
    (@decode $r:ident $what:ident, $primitive:ident) => { $r.$primitive($what)? };
    (@encode $w:ident $self:ident.$field:ident) => {
        $crate::xdr::Encode::encode(&$self.$field, $w)
    };
    (@encode $w:ident $self:ident.$field:ident, $kind:ident $(($bound:expr))?) => {
        $w.$kind($self.$field)
    };
    (@debug $self:ident.$field:ident, opaque($bound:expr)) => {
        $crate::xdr::Escaped($self.$field)
    };
    (@debug $self:ident.$field:ident $(, $primitive:ident)?) => { $self.$field };
}
pub(crate) use xdr_struct;

/// Declares an enumeration with its wire numbers and RFC names, and its codec.
macro_rules! xdr_enum {
    ($(#[$meta:meta])* pub enum $name:ident: $what:literal {
        $($(#[$variant_meta:meta])* $variant:ident = $code:literal $rfc_name:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $code,)+
        }

        impl $name {
            /// Every value, in wire order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The number on the wire.
            #[must_use]
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// The value with this number on the wire, if there is one.
            #[must_use]
            pub const fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// The RFC's own spelling, for logs and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $rfc_name,)+
                }
            }
        }

        impl TryFrom<u32> for $name {
            type Error = $crate::xdr::UnknownValue;

            fn try_from(value: u32) -> Result<Self, Self::Error> {
                Self::from_code(value).ok_or($crate::xdr::UnknownValue { what: $what, value })
            }
        }

        impl $crate::xdr::Decode<'_> for $name {
            fn decode(
                r: &mut $crate::xdr::Reader<'_>,
            ) -> Result<Self, $crate::xdr::DecodeError> {
                let at_byte = r.position();
                let code = r.u32($what)?;
                Self::from_code(code).ok_or($crate::xdr::DecodeError { what: $what, at_byte })
            }
        }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, w: &mut $crate::xdr::Writer) {
                w.u32(self.code());
            }
        }
    };
}
pub(crate) use xdr_enum;

/// Declares the file handle of a version, with its codec.
macro_rules! xdr_file_handle {
    ($(#[$meta:meta])* pub struct $name:ident: $what:literal[$bytes_max:ident]) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name {
            /// Zero behind the first `len`, so that the derived equality is that of the handles.
            bytes: [u8; $bytes_max],
            len: u8,
        }

        impl $name {
            /// Copies a handle; `None` when it is longer than the protocol allows.
            #[must_use]
            pub fn new(handle: &[u8]) -> Option<Self> {
                let mut bytes = [0; $bytes_max];
                bytes.get_mut(..handle.len())?.copy_from_slice(handle);
                Some(Self { bytes, len: u8::try_from(handle.len()).ok()? })
            }

            /// The bytes as the server made them.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                &self.bytes[..usize::from(self.len)]
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($name), $crate::xdr::Hex(self.as_bytes()))
            }
        }

        impl $crate::xdr::Decode<'_> for $name {
            fn decode(
                r: &mut $crate::xdr::Reader<'_>,
            ) -> Result<Self, $crate::xdr::DecodeError> {
                let failure = $crate::xdr::DecodeError { what: $what, at_byte: r.position() };
                Self::new(r.opaque($bytes_max, failure.what)?).ok_or(failure)
            }
        }

        impl $crate::xdr::Encode for $name {
            fn encode(&self, w: &mut $crate::xdr::Writer) {
                w.opaque(self.as_bytes());
            }
        }
    };
}
pub(crate) use xdr_file_handle;
