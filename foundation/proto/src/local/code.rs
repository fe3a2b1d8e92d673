//! Why something did not happen: stable numbers, the same in packets, in the journal and in C (`TARN_E...`).

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal;)+) => {
        /// Why something did not happen.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        #[repr(i32)]
        pub enum Code {
            $($(#[doc = $doc])+ $name = $number,)+
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// A short sentence.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

codes! {
    /// The request makes no sense.
    Invalid = 1, "the request is not valid";
    /// A queue or table is full; nothing was taken.
    Busy = 2, "a queue is full: try again later";
    /// No such task, space, region, job or path.
    NotFound = 3, "what was named does not exist";
    /// The user may not.
    Denied = 4, "not allowed for this user";
    /// The space or the file system is full.
    NoSpace = 5, "no space at the destination";
    /// The user's or the job's quota is used up.
    Quota = 6, "the quota is used up";
    /// The destination is there already.
    Exists = 7, "the destination exists already";
    /// The source changed or vanished while it was read.
    Changed = 8, "the source changed while it was read";
    /// The bytes that were read are not those that were written.
    Corrupt = 9, "the content does not match its checksum";
    /// The system refused something else.
    Io = 10, "an input or output error";
    /// It was cancelled.
    Cancelled = 11, "the task was cancelled";
    /// A task that this one follows has not ended well.
    Dependency = 12, "a task that this one follows has failed";
    /// tarnd cannot do this (yet).
    Unsupported = 13, "this is not supported";
    /// The connection to tarnd, or to another node, is gone.
    Lost = 14, "the connection to tarnd, or to another node, is lost";
    /// It took longer than the caller wanted to wait.
    TimedOut = 15, "the time is over";
    /// No version of the messages in common.
    Version = 16, "tarnd and this program speak different versions";
    /// An error inside tarn.
    Internal = 17, "an error inside tarn";
    /// The medium keeps nothing without power.
    Volatile = 18, "the medium is memory, which does not outlive a loss of power";
}

impl Code {
    /// The stable number.
    pub fn number(self) -> i32 {
        self as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_from_one_in_the_order_of_packets() {
        for (at, code) in (1i32..).zip(Code::ALL) {
            assert_eq!(code.number(), at);
            // postcard numbers variants from 0: adding one in the middle would change packets.
            let packed = postcard::to_stdvec(code).unwrap();
            assert_eq!(packed, [u8::try_from(at - 1).unwrap()]);
        }
    }
}
