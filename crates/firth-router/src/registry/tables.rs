//! [`Tables`]: the gateways among which a tenant's events are spread. Pure.
//!
//! A gateway whose registrant is limited to some tenants gets events of those alone. So tenants may
//! have different tables; tenants with the same gateways share one.

use super::subscription::Gateway;
use crate::name::{GatewayId, Tenant};
use crate::pattern;
use crate::routing::SlotTable;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Tenants whose table is remembered; beyond that, all are forgotten.
const MAX_TENANTS: usize = 10_000;
/// Different tables that are remembered, of about 8 KiB each; beyond that, all are forgotten.
const MAX_TABLES: usize = 256;

/// The gateways that there are at one moment.
pub(crate) struct Tables {
    /// The table of gateways that every tenant's events may go to.
    open: Arc<SlotTable>,
    /// The others, with the patterns of their tenants.
    limited: Vec<(GatewayId, Vec<String>)>,
    made: Mutex<TableCache>,
}

/// Tables that were asked for.
#[derive(Default)]
struct TableCache {
    by_tenant: HashMap<Tenant, Arc<SlotTable>>,
    tables: Vec<Arc<SlotTable>>,
}

impl Tables {
    pub(super) fn new<'a>(gateways: impl IntoIterator<Item = &'a Gateway>) -> Self {
        let mut open = Vec::new();
        let mut limited = Vec::new();
        for gateway in gateways {
            match &gateway.tenants[..] {
                [] => open.push(gateway.id.clone()),
                tenants => limited.push((gateway.id.clone(), tenants.to_vec())),
            }
        }
        Self { open: Arc::new(SlotTable::new(open)), limited, made: Mutex::default() }
    }

    /// The table of a tenant.
    pub(crate) fn of(&self, tenant: &Tenant) -> Arc<SlotTable> {
        if self.limited.is_empty() {
            return Arc::clone(&self.open);
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = made.by_tenant.get(tenant) {
            return Arc::clone(table);
        }
        let table = self.make(tenant, &mut made.tables);
        if made.by_tenant.len() >= MAX_TENANTS {
            made.by_tenant.clear();
        }
        made.by_tenant.insert(tenant.clone(), Arc::clone(&table));
        table
    }

    fn make(&self, tenant: &Tenant, tables: &mut Vec<Arc<SlotTable>>) -> Arc<SlotTable> {
        let is_theirs = |(_, patterns): &&(GatewayId, Vec<String>)| {
            patterns.iter().any(|one| pattern::matches(one, tenant.as_str()))
        };
        let own = self.limited.iter().filter(is_theirs).map(|(id, _)| id);
        let mut gateways: Vec<_> = self.open.gateways().iter().chain(own).cloned().collect();
        gateways.sort();
        if let Some(same) =
            [&self.open].into_iter().chain(&*tables).find(|table| table.gateways() == gateways)
        {
            return Arc::clone(same);
        }
        let table = Arc::new(SlotTable::new(gateways));
        if tables.len() >= MAX_TABLES {
            tables.clear();
        }
        tables.push(Arc::clone(&table));
        table
    }
}

impl fmt::Debug for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tables({} open, {} limited)", self.open.gateways().len(), self.limited.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(id: &str, tenants: &[&str]) -> Gateway {
        let mut gateway = Gateway::new(GatewayId::new(id).unwrap(), "");
        gateway.tenants = tenants.iter().map(|tenant| (*tenant).to_owned()).collect();
        gateway
    }

    #[test]
    fn r17_a_gateway_for_some_tenants_is_in_no_other_tenants_table() {
        let gateways =
            [gateway("core", &[]), gateway("edge-1", &["acme", "acme-*"]), gateway("edge-2", &["b*"])];
        let tables = Tables::new(&gateways);
        let of = |tenant: &str| tables.of(&Tenant::new(tenant).unwrap());
        let names = |tenant: &str| {
            of(tenant).gateways().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((names("acme"), names("acme-2")), ("core edge-1".into(), "core edge-1".into()));
        assert_eq!((names("beta"), names("other")), ("core edge-2".into(), "core".into()));
        assert!(Arc::ptr_eq(&of("acme"), &of("acme-2")), "tenants with the same gateways share a table");
        assert!(Arc::ptr_eq(&of("other"), &tables.open));
        let none = Tables::new(&gateways[1..]);
        assert_eq!(none.of(&Tenant::new("other").unwrap()).owner(0), None);
    }

    #[test]
    fn r17_what_tables_remember_is_bounded() {
        let gateways: Vec<_> = (0..4).map(|n| gateway(&format!("g{n}"), &[&format!("*{n}*"), "z"])).collect();
        let tables = Tables::new(&gateways);
        for n in 0..MAX_TENANTS + 10 {
            tables.of(&Tenant::new(format!("t{n}")).unwrap());
        }
        let made = tables.made.lock().unwrap();
        assert!(made.by_tenant.len() <= MAX_TENANTS && made.tables.len() <= MAX_TABLES);
    }
}
