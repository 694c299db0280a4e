//! The types of a component's functions, compared with those that are wanted.
//!
//! Done before anything is linked, so that a difference is named.

use wasmtime::component::{ComponentNamedList, Lift, Lower, types::ComponentItem};

use crate::trap;

/// The functions of a component, with their types.
pub(crate) struct Signatures<'a> {
    pub(crate) engine: &'a wasmtime::Engine,
    pub(crate) component: &'a wasmtime::component::Component,
}

impl Signatures<'_> {
    /// Compares one function with what is wanted, which is told in words as well.
    pub(crate) fn check<Params, Return>(
        &self,
        interface: &str,
        name: &str,
        wanted: &str,
    ) -> Result<(), String>
    where
        Params: ComponentNamedList + Lower,
        Return: ComponentNamedList + Lift,
    {
        let ty = self.component.component_type();
        let found = match ty.get_export(self.engine, interface).map(|export| export.ty) {
            Some(ComponentItem::ComponentInstance(instance)) => {
                instance.get_export(self.engine, name).map(|export| export.ty)
            }
            _ => None,
        };
        let Some(ComponentItem::ComponentFunc(func)) = found else {
            return Err(format!("found no function `{name}` in `{interface}`, wanted `{wanted}`"));
        };
        func.typecheck::<Params, Return>(&ty.instance_type()).map_err(|error| {
            format!(
                "found another type of `{name}` in `{interface}`, wanted `{wanted}`: {}",
                trap::line(&error)
            )
        })
    }
}
