//! [`remove`]: takes down what a source has in its database: the slot, and the publication if the
//! source made it.

use super::catalog::{self, quoted};
use super::config::Config;
use super::{prepare, slot};
use crate::error::{Error, ErrorKind, Result};

/// Drops the slot and the source's own publication. What is gone already is fine, so that a second
/// try finishes the first.
pub(crate) async fn remove(config: &Config, epoch: u64) -> Result<()> {
    let mut primary = prepare::primary(config, epoch).await?;
    let name = config.slot();
    if let Some(found) = catalog::slot(&mut primary.queries, &name).await? {
        if found.plugin != "pgoutput" || found.database != config.target.database {
            return Err(Error::refused(format!(
                "slot {name} belongs to plugin {:?} in database {:?}: drop it by hand if nobody needs it",
                found.plugin, found.database
            )));
        }
        slot::drop_slot(config, &mut primary, &found, epoch).await?;
    }
    if config.own_publication {
        let sql = format!("DROP PUBLICATION IF EXISTS {}", quoted(&config.publication));
        primary.queries.query(&sql).await.map_err(|error| match error.kind() {
            ErrorKind::Unauthorized => Error::new(
                ErrorKind::Unauthorized,
                format!("the role may not drop the publication; let its owner run: {sql}"),
            )
            .with_source(error),
            _ => error,
        })?;
    }
    Ok(())
}
