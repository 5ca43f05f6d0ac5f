//! Blocks of extended attributes.

use floe_format::BlockNr;
use floe_format::ext::xattr::{self, XattrHeader};

use crate::edit::AttributeBlockEdit;
use crate::failure::Failure;
use crate::stage::Stage;

pub(super) fn apply(
    stage: &mut Stage<'_>,
    block: BlockNr,
    edit: AttributeBlockEdit,
) -> Result<(), Failure> {
    let mut bytes = stage.read_block(block)?;
    if let (AttributeBlockEdit::References(count), Some(head)) = (edit, bytes.first_chunk_mut()) {
        let mut header = XattrHeader::decode(head);
        header.refcount = count;
        header.encode_into(head);
    }
    if stage.checksummed() {
        xattr::write_block_checksum(stage.seed, block, &mut bytes);
    }
    stage.write_block(block, &bytes)
}
