//! The output of `ndctl list -BDRNi`, `daxctl list -RDi` and `cxl list -MRi`.

use crate::Garbled;
use crate::json::{Objects, value};
use crate::mode::DaxMode;
use serde::Serialize;

/// An interleave set, in which namespaces are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Region {
    /// Such as `region0`.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Those that no namespace has.
    pub available: u64,
    /// The set's identifier. Old versions print it with a sign, which is undone here.
    pub set: Option<u64>,
    /// The stage that a write must reach to be persistent, such as `memory_controller`.
    pub persistence: Option<String>,
    /// The provider, such as `ACPI.NFIT`, `e820` or `CXL`.
    pub provider: Option<String>,
}

/// A namespace, which holds data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Namespace {
    /// Such as `namespace0.0`.
    pub name: String,
    /// `fsdax`, `devdax`, `sector` or `raw`.
    pub mode: String,
    /// Its bytes.
    pub size: u64,
    /// Its device below /dev: a block device, or one to map.
    pub device: Option<String>,
    /// The region it is in.
    pub region: Option<String>,
    /// Its provider.
    pub provider: Option<String>,
    /// Whether it has a driver.
    pub enabled: bool,
}

impl Namespace {
    /// Whether it is stored on DIMMs, whose mode firmware changes: not from the command line (`e820`) or CXL.
    pub fn on_modules(&self) -> bool {
        on_modules(self.provider.as_deref())
    }
}

impl Region {
    /// Whether it is stored on DIMMs.
    pub fn on_modules(&self) -> bool {
        on_modules(self.provider.as_deref())
    }
}

fn on_modules(provider: Option<&str>) -> bool {
    provider.is_none_or(|p| p.starts_with("ACPI.NFIT") || p.starts_with("nfit"))
}

/// The content of ndctl's output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ndctl {
    /// Regions.
    pub regions: Vec<Region>,
    /// Namespaces that have a size: others are seeds of the kernel.
    pub namespaces: Vec<Namespace>,
}

/// Reads the output of `ndctl list`, with any options.
///
/// # Errors
/// When it is none.
pub fn ndctl(text: &str) -> Result<Ndctl, Garbled> {
    let value = value("ndctl", text)?;
    let objects = Objects::of("ndctl", &value)?;
    let mut found = Ndctl::default();
    for object in objects.iter() {
        let Some(name) = object.text("dev") else {
            continue;
        };
        let size = object.bytes("size").unwrap_or(0);
        let provider = objects.around(object, &["provider"]);
        if name.starts_with("region") && object.text("mode").is_none() {
            found.regions.push(Region {
                name: name.into(),
                size,
                available: object.bytes("available_size").unwrap_or(0),
                set: object.identifier("iset_id"),
                persistence: object.text("persistence_domain").map(Into::into),
                provider,
            });
        } else if name.starts_with("namespace") && size > 0 {
            let within = objects.outer(object).and_then(|o| o.text("dev"));
            let region = within.filter(|d| d.starts_with("region"));
            let device = object.text("blockdev").or_else(|| object.text("chardev"));
            found.namespaces.push(Namespace {
                name: name.into(),
                mode: object.text("mode").unwrap_or("raw").into(),
                size,
                device: device.map(Into::into),
                region: region.map(Into::into).or_else(|| region_of(name)),
                provider,
                enabled: object.text("state") != Some("disabled"),
            });
        }
    }
    Ok(found)
}

/// `namespace3.1` is in `region3`.
fn region_of(namespace: &str) -> Option<String> {
    let (number, _) = namespace.strip_prefix("namespace")?.split_once('.')?;
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| format!("region{number}"))
}

/// A device-DAX device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Dax {
    /// Such as `dax0.0`.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Its use.
    pub mode: DaxMode,
    /// The NUMA node that it is, or would be.
    pub numa: Option<i64>,
    /// Memory blocks of it that are used as memory.
    pub online_blocks: Option<u64>,
    /// Whether its memory may be taken away again.
    pub movable: Option<bool>,
    /// The device that it hangs on: names CXL, `hmem` or an interleave set.
    pub path: Option<String>,
    /// Whether it has a driver.
    pub enabled: bool,
}

/// Reads the output of `daxctl list`, with any options.
///
/// # Errors
/// When it is none.
pub fn daxctl(text: &str) -> Result<Vec<Dax>, Garbled> {
    let value = value("daxctl", text)?;
    let objects = Objects::of("daxctl", &value)?;
    let devices = objects.iter().filter_map(|object| {
        Some(Dax {
            name: object.text("chardev")?.into(),
            size: object.bytes("size").unwrap_or(0),
            mode: match object.text("mode") {
                // Versions before 66 know no other.
                Some("devdax") | None => DaxMode::Devdax,
                Some("system-ram") => DaxMode::SystemRam,
                Some(_) => DaxMode::Other,
            },
            numa: object.number("target_node"),
            online_blocks: object.bytes("online_memblocks"),
            movable: object.flag("movable"),
            path: objects.around(object, &["path"]),
            enabled: object.text("state") != Some("disabled"),
        })
    });
    Ok(devices.filter(|d| d.size > 0).collect())
}

/// A CXL memory device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memdev {
    /// Such as `mem0`.
    pub name: String,
    /// Volatile bytes.
    pub ram: u64,
    /// Persistent bytes.
    pub pmem: u64,
    /// Its NUMA node.
    pub numa: Option<i64>,
    /// The device at which it is plugged in.
    pub host: Option<String>,
}

/// Reads the output of `cxl list`, with any options.
///
/// # Errors
/// When it is none.
pub fn cxl(text: &str) -> Result<Vec<Memdev>, Garbled> {
    let value = value("cxl", text)?;
    let objects = Objects::of("cxl", &value)?;
    let devices = objects.iter().filter_map(|object| {
        // Decoders and mappings name the devices that they use too.
        let name = object.text("memdev")?;
        let (ram, pmem) = (object.bytes("ram_size"), object.bytes("pmem_size"));
        (ram.is_some() || pmem.is_some()).then(|| Memdev {
            name: name.into(),
            ram: ram.unwrap_or(0),
            pmem: pmem.unwrap_or(0),
            numa: object.number("numa_node"),
            host: object.text("host").map(Into::into),
        })
    });
    Ok(devices.collect())
}
