//! Batches are built in glommio's DMA buffers.

use glommio::io::DmaBuffer;

use crate::io::BatchBuffer;

impl BatchBuffer for DmaBuffer {
    fn allocate(len: usize) -> Self {
        glommio::allocate_dma_buffer(len)
    }

    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_bytes_mut()
    }

    fn trim(&mut self, len: usize) {
        self.trim_to_size(len.min(self.len()));
    }
}
