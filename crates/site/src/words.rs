//! What holds workflows is kept as JSON within the state: they leave out what is not said, which the state's own format cannot.

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<T: Serialize, S: Serializer>(what: &T, to: S) -> Result<S::Ok, S::Error> {
    serde_json::to_string(what)
        .map_err(S::Error::custom)?
        .serialize(to)
}

pub(crate) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    serde_json::from_str(&text).map_err(D::Error::custom)
}
