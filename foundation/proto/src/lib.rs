//! L1: messages between tarn's processes. Their parsers are total: no input makes them panic or take more memory than
//! the bound of a message.

pub mod data;
pub mod local;
pub mod node;
pub mod site;
pub mod storage;
